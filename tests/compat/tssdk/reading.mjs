// Where reads start, stop and wait; following; timestamps.
import assert from "node:assert/strict";

import { batch, bodiesOf, collect, refused, sdk } from "./world.mjs";

const { AppendInput, AppendRecord, CaughtUpTracker, RangeNotSatisfiableError, S2Error } = sdk;
const FUTURE_MS = 2 ** 45;
const START = { start: { from: { seqNum: 0 } } };
const TRANSPORTS = ["s2s", "fetch"];

function stamped(...timestamps) {
  return AppendInput.create(
    timestamps.map((timestamp) => AppendRecord.string({ body: "xx", timestamp })),
  );
}

async function stampsOf(stream) {
  const found = await stream.read(START);
  return found.records.map((record) => record.timestamp.getTime());
}

export async function timestamps_follow_the_mode_of_the_stream(world) {
  const streamWith = (mode, uncapped = false) =>
    world.stream({ config: { timestamping: { mode, uncapped } } });
  const prefer = await streamWith("client-prefer");
  await prefer.append(stamped(5, 3, 9, FUTURE_MS, undefined));
  const found = await stampsOf(prefer);
  assert.deepEqual(found.slice(0, 3), [5, 5, 9]);
  assert.ok(9 < found[3] && found[3] <= found[4] && found[4] < FUTURE_MS);
  const uncapped = await streamWith("client-prefer", true);
  await uncapped.append(stamped(0, FUTURE_MS, 7));
  assert.deepEqual(await stampsOf(uncapped), [0, FUTURE_MS, FUTURE_MS]);
  const require = await streamWith("client-require");
  await refused(require.append(stamped(1, undefined)), 422, "invalid");
  const ack = await require.append(stamped(1, new Date(2)));
  assert.deepEqual([ack.start.seqNum, ack.end.timestamp.getTime()], [0, 2]);
  const arrival = await streamWith("arrival");
  const arrived = (await arrival.append(stamped(5))).start.timestamp.getTime();
  assert.ok(5 < arrived && arrived < FUTURE_MS);
}

export async function reads_start_and_stop_where_told(world) {
  const stream = await world.stream();
  const fetched = world.keep(
    world.s2.basin(world.lastBasin).stream(stream.name, { forceTransport: "fetch" }),
  );
  await stream.append(stamped(...Array.from({ length: 10 }, (_, index) => index + 10)));
  const read = async (from, stop = {}, clamp = false) => {
    const start = { from, clamp };
    const seqNums = (records) => records.map((record) => record.seqNum);
    const unary = seqNums((await stream.read({ start, stop })).records);
    for (const one of [stream, fetched]) {
      const session = await one.readSession({ start, stop: { waitSecs: 0, ...stop } });
      assert.deepEqual(seqNums(await collect(session)), unary);
    }
    return unary;
  };
  const all = Array.from({ length: 10 }, (_, index) => index);
  assert.deepEqual(await read({ seqNum: 0 }), all);
  assert.deepEqual(await read({ seqNum: 4 }, { limits: { count: 3 } }), [4, 5, 6]);
  assert.deepEqual(await read({ seqNum: 4 }, { limits: { bytes: 25 } }), [4, 5]);
  assert.deepEqual(await read({ tailOffset: 3 }), [7, 8, 9]);
  assert.deepEqual(await read({ tailOffset: 99 }), all);
  assert.deepEqual(await read({ timestamp: new Date(15) }), [5, 6, 7, 8, 9]);
  assert.deepEqual(await read({ seqNum: 2 }, { untilTimestamp: 15 }), [2, 3, 4]);
  assert.deepEqual(await read({ seqNum: 99 }, { waitSecs: 1 }, true), []);
  const nothing = { start: { from: { timestamp: 5 } }, stop: { untilTimestamp: 5 } };
  await refused(stream.read(nothing), 422, "invalid");
}

export async function reading_what_is_unwritten_says_the_tail(world) {
  for (const forceTransport of TRANSPORTS) {
    const stream = await world.stream({ options: { forceTransport } });
    await stream.append(stamped(10, 20));
    for (const from of [{ seqNum: 2 }, { seqNum: 7 }, { timestamp: 21 }, { tailOffset: 0 }]) {
      const input = { start: { from }, stop: { limits: { count: 1 } } };
      const isRight = (error) => {
        assert.ok(error instanceof RangeNotSatisfiableError, String(error));
        assert.deepEqual([error.status, error.tail?.seqNum], [416, 2]);
        return true;
      };
      await assert.rejects(stream.read(input), isRight);
      await assert.rejects(
        (async () => collect(await stream.readSession(input)))(),
        (error) => error.status === 416,
      );
    }
  }
}

export async function a_reader_follows_and_knows_when_it_has_caught_up(world) {
  for (const forceTransport of TRANSPORTS) {
    const stream = await world.stream({ options: { forceTransport } });
    await stream.append(batch(["history"]));
    const session = await stream.readSession(START);
    const records = session[Symbol.asyncIterator]();
    const found = [(await records.next()).value.body];
    // It finds out only while somebody reads on.
    let next = records.next();
    assert.equal((await session.caughtUp()).seqNum, 1);
    assert.ok(session.isCaughtUp());
    const expected = ["history"];
    for (let number = 0; number < 20; number += 1) {
      expected.push(String(number).repeat(300));
      await stream.append(batch([expected.at(-1)]));
      found.push((await next).value.body);
      assert.equal(session.nextReadPosition().seqNum, number + 2);
      next = records.next();
    }
    assert.deepEqual(found, expected);
    assert.equal(session.lastObservedTail().seqNum, 21);
    // Whoever iterates holds the session, so the iteration ends first.
    await stream.append(batch(["last"]));
    assert.equal((await next).value.body, "last");
    await records.return();
    await session[Symbol.asyncDispose]();
  }
  assert.ok(new CaughtUpTracker());
}

export async function a_reader_ends_when_its_stream_is_deleted(world) {
  const client = world.client({ attempts: 1 });
  for (const forceTransport of TRANSPORTS) {
    const stream = await world.stream({ client, options: { forceTransport } });
    await stream.append(batch(["seen"]));
    const session = await stream.readSession(START);
    const records = session[Symbol.asyncIterator]();
    assert.equal((await records.next()).value.body, "seen");
    // Listened to from the start: the reader may hear of its end before the delete is answered.
    const ended = assert.rejects(records.next(), (error) => {
      assert.ok(error instanceof S2Error && [404, 409, 503].includes(error.status), String(error));
      return true;
    });
    await session.caughtUp();
    await world.s2.basin(world.lastBasin).streams.delete({ stream: stream.name });
    await ended;
  }
  assert.deepEqual(await bodiesOf([]), []);
}
