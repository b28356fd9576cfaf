// Runs the scenarios that standard input names; the protocol is drawn in tests/compat/driver.py.
import { Session } from "node:inspector/promises";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

import * as account from "./account.mjs";
import * as appending from "./appending.mjs";
import * as control from "./control.mjs";
import * as reading from "./reading.mjs";
import * as restarts from "./restarts.mjs";
import { World } from "./world.mjs";

const scenarios = { ...account, ...appending, ...control, ...reading, ...restarts };
const [sdk, tracing] = process.argv.slice(2);
const profiler = new Session();
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function listen() {
  const { value, done } = await lines.next();
  return done ? undefined : JSON.parse(value);
}

function say(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

async function restart(ending) {
  say({ ask: ending });
  await listen();
}

async function run(name, compression) {
  const world = new World(compression, restart);
  try {
    await scenarios[name](world);
    return null;
  } catch (error) {
    return `${error.stack}\n${JSON.stringify(error)}`;
  } finally {
    await world.close();
  }
}

// Functions by file and name, as the engine itself counted them: the SDK is left as it is.
async function used() {
  const home = new URL("./", pathToFileURL(fileURLToPath(sdk))).href; // as node itself spells it
  const { result } = await profiler.post("Profiler.takePreciseCoverage");
  return result
    .filter((script) => script.url.startsWith(home))
    .flatMap((script) =>
      script.functions
        .filter((called) => called.ranges[0].count > 0)
        .map((called) => `${script.url.slice(home.length)}:${called.functionName}`),
    );
}

if (tracing === "trace") {
  profiler.connect();
  await profiler.post("Profiler.enable");
  await profiler.post("Profiler.startPreciseCoverage", { callCount: true, detailed: false });
}
for (let message = await listen(); message; message = await listen()) {
  if (message.used) say({ used: await used() });
  else say({ error: await run(message.run, message.compression) });
}
process.exit(0);
