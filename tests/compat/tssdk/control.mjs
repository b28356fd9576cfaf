// Basins, streams and locations.
import assert from "node:assert/strict";

import { batch, bodiesOf, collect, eventually, refused, sdk } from "./world.mjs";

const { paginate } = sdk;
const DAY_SECS = 86400;

export async function basins_are_created_listed_changed_and_deleted(world) {
  const { basins } = world.s2;
  const basin = world.name();
  const config = {
    createStreamOnAppend: true,
    defaultStreamConfig: { retentionPolicy: { ageSecs: DAY_SECS } },
  };
  const made = await basins.create({ basin, config });
  assert.equal(made.name, basin);
  assert.ok(!made.deletedAt);
  await refused(basins.create({ basin }), 409, "resource_already_exists");
  assert.deepEqual(await collect(basins.listAll({ prefix: basin })), [made]);
  const found = await basins.getConfig({ basin });
  assert.equal(found.defaultStreamConfig.retentionPolicy.ageSecs, DAY_SECS);
  assert.deepEqual([found.createStreamOnAppend, found.createStreamOnRead], [true, false]);
  const changed = await basins.reconfigure({ basin, createStreamOnRead: true });
  assert.deepEqual([changed.createStreamOnAppend, changed.createStreamOnRead], [true, true]);
  assert.deepEqual(await basins.getConfig({ basin }), changed);
  const cleared = await basins.reconfigure({ basin, defaultStreamConfig: null });
  assert.equal(cleared.defaultStreamConfig ?? null, null);
  await basins.delete({ basin });
  await eventually(async () => {
    const left = await collect(basins.listAll({ prefix: basin, includeDeleted: true }));
    return left.length === 0;
  });
  await refused(basins.delete({ basin }), 404, "basin_not_found");
  const again = await basins.create({ basin });
  assert.ok(again.createdAt > made.createdAt);
}

export async function streams_are_created_listed_changed_and_deleted(world) {
  const basin = await world.basin();
  const { streams } = basin;
  const stream = "a stream/with?odd#name/\u2603 %2F";
  const config = {
    storageClass: "standard",
    retentionPolicy: { infinite: {} },
    timestamping: { mode: "arrival", uncapped: true },
    deleteOnEmpty: { minAgeSecs: DAY_SECS },
  };
  const made = await streams.create({ stream, config });
  assert.equal(made.name, stream);
  assert.ok(!made.deletedAt && !made.cipher);
  await refused(streams.create({ stream }), 409, "resource_already_exists");
  assert.deepEqual(await collect(streams.listAll()), [made]);
  assert.deepEqual(await streams.getConfig({ stream }), config);
  config.retentionPolicy = { ageSecs: DAY_SECS };
  const changed = await streams.reconfigure({ stream, retentionPolicy: config.retentionPolicy });
  assert.deepEqual(changed, config);
  assert.deepEqual(await streams.getConfig({ stream }), config);
  const handle = world.keep(basin.stream(stream));
  assert.equal(handle.name, stream);
  await handle.append(batch(["old"]));
  await streams.delete({ stream });
  await eventually(
    async () => (await collect(streams.listAll({ includeDeleted: true }))).length === 0,
  );
  await refused(streams.getConfig({ stream }), 404, "stream_not_found");
  await refused(streams.delete({ stream }), 404, "stream_not_found");
  await streams.create({ stream });
  assert.equal((await handle.checkTail()).tail.seqNum, 0);
  const resolved = await streams.getConfig({ stream });
  assert.equal(resolved.storageClass, "express");
  assert.deepEqual(resolved.retentionPolicy, { ageSecs: 7 * DAY_SECS });
}

export async function listings_come_in_pages_and_in_byte_order(world) {
  const { streams } = await world.basin();
  const names = ["B", "a", "a/1", "a/2", "b", "\u00e4", "\u2603", "\u{1f600}"];
  for (const stream of [...names].reverse()) await streams.create({ stream });
  const found = [];
  for (let more = true; more; ) {
    const page = await streams.list({ limit: 3, startAfter: found.at(-1) });
    found.push(...page.streams.map((info) => info.name));
    more = page.hasMore;
    assert.equal(more, found.length < names.length);
  }
  assert.deepEqual(found, names);
  const some = await collect(streams.listAll({ prefix: "a/" }));
  assert.deepEqual(
    some.map((info) => info.name),
    ["a/1", "a/2"],
  );
  const pages = paginate(
    async (args) => {
      const page = await streams.list(args);
      return { items: page.streams, hasMore: page.hasMore };
    },
    { limit: 2 },
    (info) => info.name,
  );
  assert.deepEqual(
    (await collect(pages)).map((info) => info.name),
    names,
  );
  const prefix = world.name();
  const numbered = [0, 1, 2, 3, 4].map((number) => `${prefix}-${number}`);
  for (const basin of numbered) await world.s2.basins.create({ basin });
  const first = await world.s2.basins.list({ prefix, limit: 4 });
  assert.deepEqual(
    first.basins.map((info) => info.name),
    numbered.slice(0, 4),
  );
  assert.equal(first.hasMore, true);
  const rest = await world.s2.basins.list({ prefix, limit: 4, startAfter: numbered[3] });
  assert.deepEqual([rest.basins.map((info) => info.name), rest.hasMore], [[numbered[4]], false]);
}

export async function ensuring_says_whether_it_created_updated_or_left_alone(world) {
  const basin = world.name();
  const outcomes = [];
  const config = { createStreamOnAppend: true };
  for (const given of [config, config, { createStreamOnRead: true }])
    outcomes.push((await world.s2.basins.ensure({ basin, config: given })).result);
  assert.deepEqual(outcomes, ["created", "noop", "updated"]);
  const found = await world.s2.basins.getConfig({ basin });
  assert.deepEqual([found.createStreamOnAppend, found.createStreamOnRead], [false, true]);
  const { streams } = world.s2.basin(basin);
  const ensured = [];
  for (const ageSecs of [DAY_SECS, DAY_SECS, 3600])
    ensured.push(
      await streams.ensure({ stream: "stream", config: { retentionPolicy: { ageSecs } } }),
    );
  assert.deepEqual(
    ensured.map((one) => one.result),
    ["created", "noop", "updated"],
  );
  const resolved = await streams.getConfig({ stream: "stream" });
  assert.deepEqual(resolved.retentionPolicy, { ageSecs: 3600 });
}

export async function locations_are_listed_and_set(world) {
  const { locations, basins } = world.s2;
  const { name } = await locations.getDefault();
  assert.deepEqual(
    (await locations.list()).map((location) => location.name),
    [name],
  );
  assert.equal((await locations.setDefault({ location: name })).name, name);
  await refused(locations.setDefault({ location: "moon:base-1" }), 422, "invalid");
  assert.equal((await basins.create({ basin: world.name(), location: name })).location, name);
  const wrong = { basin: world.name(), location: "moon:base-1" };
  await refused(basins.create(wrong), 422, "invalid");
}

export async function what_is_wrong_is_refused_with_its_own_code(world) {
  const nowhere = world.s2.basin("no-such-basin");
  const absent = world.keep(nowhere.stream("stream"));
  await refused(world.s2.basins.getConfig({ basin: nowhere.name }), 404, "basin_not_found");
  await refused(nowhere.streams.create({ stream: "stream" }), 404, "basin_not_found");
  await refused(nowhere.streams.list(), 404, "basin_not_found");
  await refused(absent.append(batch(["x"])), 404, "basin_not_found");
  const basin = await world.basin();
  for (const forceTransport of ["s2s", "fetch"]) {
    const missing = world.keep(basin.stream("missing", { forceTransport }));
    await refused(missing.checkTail(), 404, "stream_not_found");
    await refused(missing.append(batch(["x"])), 404, "stream_not_found");
    await refused(missing.read({ start: { from: { seqNum: 0 } } }), 404, "stream_not_found");
    await refused(
      (async () => collect(await missing.readSession({ start: { from: { seqNum: 0 } } })))(),
      404,
      "stream_not_found",
    );
  }
  const config = { retentionPolicy: { ageSecs: 0 } };
  await refused(basin.streams.create({ stream: "stream", config }), 422, "invalid");
  assert.deepEqual(await collect(basin.streams.listAll()), []);
}

export async function streams_appear_on_append_and_on_read(world) {
  const basin = await world.basin({ createStreamOnAppend: true, createStreamOnRead: true });
  const streamConfig = { retentionPolicy: { ageSecs: DAY_SECS } };
  const stream = (name) => world.keep(basin.stream(name));
  await stream("unary").append(batch(["first"], { streamConfig }));
  const session = await stream("session").appendSession({ streamConfig });
  await (await session.submit(batch(["first"]))).ack();
  await session.close();
  const start = { from: { seqNum: 0 } };
  const read = await stream("read").read({ start, stop: { waitSecs: 1 }, streamConfig });
  assert.deepEqual(read.records, []);
  const following = { start, stop: { waitSecs: 0 }, streamConfig };
  assert.deepEqual(await collect(await stream("read-session").readSession(following)), []);
  assert.equal((await stream("tail").checkTail()).tail.seqNum, 0);
  const names = (await collect(basin.streams.listAll())).map((info) => info.name);
  assert.deepEqual(names, ["read", "read-session", "session", "tail", "unary"]);
  for (const name of names) {
    const { retentionPolicy } = await basin.streams.getConfig({ stream: name });
    assert.equal(retentionPolicy.ageSecs, name === "tail" ? 7 * DAY_SECS : DAY_SECS, name);
  }
}

export async function a_key_without_a_cipher_changes_nothing(world) {
  const basin = await world.basin();
  const made = await basin.streams.create({ stream: "plain" });
  assert.ok(!made.cipher);
  const key = new Uint8Array(32).map((_, index) => index);
  const stream = world.keep(basin.stream("plain"));
  await world.keep(stream.withEncryptionKey(key)).append(batch(["seen"]));
  const found = await stream.read({ start: { from: { seqNum: 0 } } });
  assert.deepEqual(await bodiesOf(found.records), ["seen"]);
}
