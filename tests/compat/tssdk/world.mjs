// What a scenario gets: a client, names nobody else uses, and a server that it may end.
import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";

const sdk = await import(process.argv[2]);
const { AppendInput, AppendRecord, S2, S2Environment, S2Error } = sdk;
const POLL_MS = 20;
const POLLS_MAX = 3000;
let number = 0;

export class World {
  #clients = [];
  #streams = [];
  #compression;

  constructor(compression, restart) {
    // This SDK compresses large frames in threads while smaller ones overtake them: with more than
    // one batch under way it then takes acks for those of other batches.
    this.pipelined = compression === "none" ? {} : { maxInflightBatches: 1 };
    this.#compression = compression;
    this.restart = restart;
    this.s2 = this.client();
  }

  // Many attempts let a client wait for a server that is being started.
  client({ attempts = 3, policy = "all" } = {}) {
    const made = new S2({
      ...S2Environment.parse(),
      accessToken: "any token",
      compression: this.#compression,
      retry: {
        maxAttempts: attempts,
        minBaseDelayMillis: 50,
        maxBaseDelayMillis: 500,
        appendRetryPolicy: policy,
      },
    });
    this.#clients.push(made);
    return made;
  }

  name() {
    number += 1;
    return `typescript-${process.pid}-${number}`;
  }

  async basin(config) {
    this.lastBasin = this.name();
    await this.s2.basins.create({ basin: this.lastBasin, config });
    return this.s2.basin(this.lastBasin);
  }

  async stream({ config, client = this.s2, options } = {}) {
    const basin = await this.basin();
    const stream = this.name();
    await basin.streams.create({ stream, config });
    return this.keep(client.basin(basin.name).stream(stream, options));
  }

  // A stream holds connections: it is closed at the end.
  keep(stream) {
    this.#streams.push(stream);
    return stream;
  }

  async close() {
    for (const stream of this.#streams) await stream.close();
  }
}

export const bytes = (text) => new TextEncoder().encode(text);
export const text = (body) => new TextDecoder().decode(body);

export function batch(bodies, conditions) {
  const records = bodies.map((body) =>
    typeof body === "string" ? AppendRecord.string({ body }) : AppendRecord.bytes({ body }),
  );
  return AppendInput.create(records, conditions);
}

export async function bodiesOf(records) {
  const found = [];
  for await (const record of records) found.push(record.body);
  return found;
}

export async function refused(call, status, code) {
  await assert.rejects(call, (error) => {
    assert.ok(error instanceof S2Error, String(error));
    assert.deepEqual([error.status, error.code], [status, code], error.message);
    return true;
  });
}

export async function eventually(holds) {
  for (let poll = 0; poll < POLLS_MAX; poll += 1) {
    if (await holds()) return;
    await pause(POLL_MS);
  }
  assert.fail("it never happened");
}

export async function collect(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

// Bodies of many records compare quicker as one string.
export function same(found, expected) {
  assert.equal(found.length, expected.length);
  found.forEach((body, index) => {
    if (Buffer.compare(Buffer.from(body), Buffer.from(expected[index])) !== 0)
      assert.fail(`record ${index} differs`);
  });
}

export { sdk };
