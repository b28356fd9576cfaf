// Sessions that the SDK carries over to the next server process.
import assert from "node:assert/strict";

import { readAll } from "./appending.mjs";
import { batch, bytes, collect, same, sdk } from "./world.mjs";

const { AppendInput, AppendRecord, FencingTokenMismatchError } = sdk;
const BATCHES = 1500;
const RESTART_AT = 400;
const PATIENT = { attempts: 100 };
const START = { start: { from: { seqNum: 0 } } };
const bodies = Array.from({ length: BATCHES }, (_, index) =>
  bytes(`${index}:${String.fromCharCode(32 + (index % 90)).repeat(index % 500)}`),
);

export async function everything_is_there_after_a_restart(world) {
  const s2 = world.client(PATIENT);
  const { name } = await world.basin({ createStreamOnAppend: true });
  const basin = s2.basin(name);
  const config = { retentionPolicy: { infinite: {} } };
  const made = await basin.streams.create({ stream: "stream", config });
  const stream = world.keep(basin.stream("stream"));
  await stream.append(batch(Array.from({ length: 10 }, (_, index) => String(index))));
  await stream.append(AppendInput.create([AppendRecord.trim(4), AppendRecord.fence("mine")]));
  const before = await stream.read(START);
  for (const ending of ["kill", "stop"]) {
    await world.restart(ending);
    assert.deepEqual(await stream.read(START), before);
    assert.deepEqual(await collect(basin.streams.listAll()), [made]);
    assert.equal((await s2.basins.getConfig({ basin: name })).createStreamOnAppend, true);
    const found = await basin.streams.getConfig({ stream: "stream" });
    assert.deepEqual(found.retentionPolicy, { infinite: {} });
    assert.equal((await stream.checkTail()).tail.seqNum, 12);
    await assert.rejects(stream.append(batch([""], { fencingToken: "yours" })), (error) => {
      assert.ok(error instanceof FencingTokenMismatchError, String(error));
      return true;
    });
  }
}

async function appendThrough(world, stream, ending, isMatched) {
  const session = await stream.appendSession({ maxInflightBatches: 50 });
  const acks = [];
  let restarting;
  for (const [index, body] of bodies.entries()) {
    const conditions = isMatched ? { matchSeqNum: index } : {};
    acks.push((await session.submit(batch([body], conditions))).ack());
    if (index === RESTART_AT) restarting = world.restart(ending);
  }
  const found = await Promise.all(acks);
  await session.close();
  await restarting;
  return found.map((ack) => ack.start.seqNum);
}

export async function an_append_session_outlives_a_kill(world) {
  const stream = await world.stream({ client: world.client(PATIENT) });
  const starts = await appendThrough(world, stream, "kill", false);
  const found = await readAll(stream, (await stream.checkTail()).tail.seqNum);
  same(
    starts.map((start) => found[start]),
    bodies,
  );
  assert.deepEqual(
    starts,
    [...new Set(starts)].sort((one, other) => one - other),
  );
  // What was under way may be there twice; nothing else may.
  assert.ok(found.length - BATCHES <= 50, String(found.length));
  assert.equal(new Set(found.map((body) => Buffer.from(body).toString())).size, BATCHES);
}

// A draining server lets clients leave between two batches: no append is ever in doubt.
export async function an_append_session_outlives_a_stop_without_repeating(world) {
  const careful = world.client({ ...PATIENT, policy: "noSideEffects" });
  const stream = await world.stream({ client: careful });
  const starts = await appendThrough(world, stream, "stop", true);
  assert.ok(starts.every((start, index) => start === index));
  same(await readAll(stream, BATCHES), bodies);
}

export async function a_read_session_outlives_a_kill(world) {
  await readThrough(world, "kill");
}

export async function a_read_session_outlives_a_stop(world) {
  await readThrough(world, "stop");
}

async function readThrough(world, ending) {
  const stream = await world.stream({ client: world.client(PATIENT) });
  await stream.append(batch(bodies.slice(0, 500)));
  const stop = { limits: { count: BATCHES }, waitSecs: 60 };
  const session = await stream.readSession({ ...START, stop }, { as: "bytes" });
  const found = [];
  let writing;
  const writeOn = async () => {
    await world.restart(ending);
    for (let index = 500; index < BATCHES; index += 100)
      await stream.append(batch(bodies.slice(index, index + 100)));
  };
  for await (const record of session) {
    found.push(record.body);
    if (found.length === 300) writing = writeOn();
  }
  await writing;
  same(found, bodies);
}
