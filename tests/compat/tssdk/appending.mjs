// Records, conditions, commands, sessions and producers.
import assert from "node:assert/strict";

import { batch, bodiesOf, bytes, collect, refused, same, sdk } from "./world.mjs";

const {
  AppendInput,
  AppendRecord,
  BatchTransform,
  FencingTokenMismatchError,
  MAX_APPEND_BYTES,
  Producer,
  SeqNumMismatchError,
  meteredBytes,
  randomToken,
  utf8ByteLength,
} = sdk;
const BATCHES = 3000;
const START = { start: { from: { seqNum: 0 } } };

export async function readAll(stream, count) {
  const session = await stream.readSession({ ...START, stop: { limits: { count } } }, { as: "bytes" });
  return bodiesOf(session);
}

export async function records_are_read_back_exactly(world) {
  const every = new Uint8Array(256).map((_, index) => index);
  const bodies = [
    new Uint8Array(),
    bytes("\0"),
    bytes("text"),
    every,
    bytes("\u2603"),
    new Uint8Array([255, 254]),
    bytes("z".repeat(5000)),
  ];
  const records = bodies.map((body, index) =>
    AppendRecord.bytes({
      body,
      headers: [
        [bytes("n"), bytes(String(index))],
        [bytes("n"), new Uint8Array([255])],
        [bytes("empty"), new Uint8Array()],
      ],
    }),
  );
  for (const forceTransport of ["s2s", "fetch"]) {
    const stream = await world.stream({ options: { forceTransport } });
    const ack = await stream.append(AppendInput.create(records));
    assert.deepEqual(
      [ack.start.seqNum, ack.end.seqNum, ack.tail.seqNum],
      [0, bodies.length, bodies.length],
    );
    const found = await stream.read(START, { as: "bytes" });
    same(await bodiesOf(found.records), bodies);
    found.records.forEach((record, index) => {
      assert.equal(record.seqNum, index);
      assert.deepEqual(
        record.headers.map((header) => header.map((part) => Buffer.from(part).toString("hex"))),
        records[index].headers.map((header) =>
          header.map((part) => Buffer.from(part).toString("hex")),
        ),
      );
      assert.equal(meteredBytes(records[index]), records[index].meteredBytes);
    });
    const { tail } = await stream.checkTail();
    assert.equal(tail.seqNum, bodies.length);
    assert.deepEqual(tail.timestamp, found.records.at(-1).timestamp);
    const words = [["k", "\u2603"]];
    await stream.append(
      AppendInput.create([AppendRecord.string({ body: "snow \u2603", headers: words })]),
    );
    const last = await stream.read({ start: { from: { tailOffset: 1 } } });
    assert.equal(last.records[0].body, "snow \u2603");
    assert.deepEqual(last.records[0].headers, words);
  }
  assert.equal(utf8ByteLength("\u2603"), 3);
  assert.notEqual(randomToken(), randomToken());
}

export async function the_largest_batches_are_taken(world) {
  const stream = await world.stream();
  const room = AppendRecord.maxBodyBytes();
  assert.equal(room, MAX_APPEND_BYTES - 8);
  const largest = new Uint8Array(room).map((_, index) => index % 256);
  const many = Array.from({ length: 1000 }, (_, index) => bytes(index + "x".repeat(1000)));
  await stream.append(batch([largest]));
  await stream.append(batch(many));
  const session = await stream.appendSession(world.pipelined);
  for (let count = 0; count < 8; count += 1) await session.submit(batch([largest]));
  await session.submit(batch(many));
  await session.close();
  const first = await stream.read(START, { as: "bytes" });
  same(await bodiesOf(first.records), [largest]);
  same(await readAll(stream, 2009), [largest, ...many, ...Array(8).fill(largest), ...many]);
}

export async function appends_are_conditional(world) {
  const stream = await world.stream();
  await stream.append(batch(["0"], { matchSeqNum: 0 }));
  await assert.rejects(stream.append(batch(["1"], { matchSeqNum: 7 })), (error) => {
    assert.ok(error instanceof SeqNumMismatchError, String(error));
    assert.deepEqual([error.status, error.expectedSeqNum], [412, 1]);
    return true;
  });
  await stream.append(batch(["1"], { matchSeqNum: 1, fencingToken: "" }));
  await stream.append(AppendInput.create([AppendRecord.fence("mine")], { fencingToken: "" }));
  const wrong = batch(["3"], { fencingToken: "yours", matchSeqNum: 99 });
  await assert.rejects(stream.append(wrong), (error) => {
    assert.ok(error instanceof FencingTokenMismatchError, String(error));
    assert.deepEqual([error.status, error.expectedFencingToken], [412, "mine"]);
    return true;
  });
  await stream.append(batch(["3"], { fencingToken: "mine", matchSeqNum: 3 }));
  await stream.append(batch(["4"]));
  const found = await stream.read({ ...START, ignoreCommandRecords: true });
  assert.deepEqual(await bodiesOf(found.records), ["0", "1", "3", "4"]);
}

export async function a_session_fails_at_its_first_unmet_condition(world) {
  const stream = await world.stream();
  const session = await stream.appendSession({ maxInflightBatches: 10 });
  const acks = [];
  for (const matchSeqNum of [0, 1, 2, 99, undefined]) {
    const ticket = await session.submit(batch(["x"], { matchSeqNum }));
    acks.push(ticket.ack());
  }
  const settled = await Promise.allSettled(acks);
  assert.deepEqual(
    settled.map((one) => one.value?.start.seqNum ?? one.reason.expectedSeqNum),
    [0, 1, 2, 3, 3],
  );
  assert.ok(settled[3].reason instanceof SeqNumMismatchError);
  assert.ok(session.failureCause() instanceof SeqNumMismatchError);
  assert.equal(session.lastAckedPosition().end.seqNum, 3);
  await session.close().catch(() => {});
  assert.equal((await stream.checkTail()).tail.seqNum, 3);
}

export async function fences_and_trims_take_effect(world) {
  const stream = await world.stream();
  await stream.append(batch(Array.from({ length: 10 }, (_, index) => String(index))));
  const ack = await stream.append(AppendInput.create([AppendRecord.trim(6)]));
  assert.deepEqual([ack.start.seqNum, ack.tail.seqNum], [10, 11]);
  const found = await stream.read(START, { as: "bytes" });
  assert.deepEqual(
    found.records.map((record) => record.seqNum),
    [6, 7, 8, 9, 10],
  );
  const command = found.records.at(-1);
  assert.deepEqual(Buffer.from(command.body), Buffer.from([0, 0, 0, 0, 0, 0, 0, 6]));
  assert.deepEqual(
    command.headers.map((header) => header.map((part) => Buffer.from(part).toString())),
    [["", "trim"]],
  );
  await stream.append(AppendInput.create([AppendRecord.fence("first")]));
  await stream.append(AppendInput.create([AppendRecord.fence("")], { fencingToken: "first" }));
  await stream.append(batch(["free"], { fencingToken: "" }));
  const unknown = AppendRecord.bytes({ body: new Uint8Array(), headers: [["", "jump"]] });
  await refused(stream.append(AppendInput.create([unknown])), 422, "invalid");
}

export async function a_session_of_thousands_of_batches_is_exact(world) {
  const stream = await world.stream();
  const bodies = Array.from({ length: BATCHES }, (_, index) =>
    bytes(`${index}:${String.fromCharCode(32 + (index % 90)).repeat(index % 2000)}`),
  );
  const session = await stream.appendSession(world.pipelined);
  const tickets = [];
  for (const body of bodies) tickets.push(await session.submit(batch([body])));
  const acks = await Promise.all(tickets.map((ticket) => ticket.ack()));
  await session.close();
  assert.ok(acks.every((ack, index) => ack.start.seqNum === index));
  same(await readAll(stream, BATCHES), bodies);
}

export async function a_producer_batches_and_acks_each_record(world) {
  const stream = await world.stream();
  const bodies = Array.from({ length: 2500 }, (_, index) =>
    bytes(String(index).repeat(index % 50)),
  );
  const transform = { maxBatchRecords: 100, lingerDurationMillis: 20, matchSeqNum: 0 };
  const producer = new Producer(
    new BatchTransform({ ...transform, fencingToken: "" }),
    await stream.appendSession(world.pipelined),
  );
  const tickets = [];
  for (const body of bodies) tickets.push(await producer.submit(AppendRecord.bytes({ body })));
  await producer.flush();
  const acks = await Promise.all(tickets.map((ticket) => ticket.ack()));
  await producer.close();
  assert.ok(acks.every((ack, index) => ack.seqNum() === index));
  const starts = new Set(acks.map((ack) => ack.batchAppendAck().start.seqNum));
  assert.ok(starts.size >= 25 && starts.size < 250, String(starts.size));
  same(await readAll(stream, bodies.length), bodies);
  const late = new Producer(new BatchTransform(transform), await stream.appendSession(world.pipelined));
  const ticket = await late.submit(AppendRecord.string({ body: "late" }));
  await assert.rejects(ticket.ack(), (error) => error instanceof SeqNumMismatchError);
  await late.close().catch(() => {});
}

export async function records_are_batched_by_helpers(world) {
  const stream = await world.stream();
  const bodies = Array.from({ length: 250 }, (_, index) => bytes(String(index)));
  const transform = new BatchTransform({ maxBatchRecords: 100, matchSeqNum: 0 });
  const session = await stream.appendSession(world.pipelined);
  const acked = collect(session.acks());
  const source = new ReadableStream({
    start(controller) {
      for (const body of bodies) controller.enqueue(AppendRecord.bytes({ body }));
      controller.close();
    },
  });
  await source.pipeThrough(transform).pipeTo(session.writable);
  assert.deepEqual(
    (await acked).map((ack) => ack.end.seqNum),
    [100, 200, 250],
  );
  same(await readAll(stream, bodies.length), bodies);
}

export async function many_sessions_share_a_client(world) {
  const basin = await world.basin();
  const names = Array.from({ length: 30 }, (_, index) => `stream-${index}`);
  const bodies = (name) => Array.from({ length: 20 }, (_, index) => bytes(`${name}:${index}`));
  await Promise.all(
    names.map(async (name) => {
      await basin.streams.create({ stream: name });
      const session = await world.keep(basin.stream(name)).appendSession();
      for (const body of bodies(name)) await session.submit(batch([body]));
      await session.close();
    }),
  );
  for (const name of names) same(await readAll(world.keep(basin.stream(name)), 20), bodies(name));
}
