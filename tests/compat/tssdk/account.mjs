// Access tokens and usage metrics.
import assert from "node:assert/strict";

import { batch, collect, refused } from "./world.mjs";

const HOUR_MS = 3_600_000;

export async function access_tokens_are_issued_listed_and_revoked(world) {
  const tokens = world.s2.accessTokens;
  const id = world.name();
  const scope = {
    basins: { prefix: "" },
    streams: { prefix: "p/" },
    opGroups: { stream: { read: true } },
    ops: ["append"],
  };
  const issued = await tokens.issue({ id, scope, autoPrefixStreams: true });
  assert.ok(issued.accessToken);
  await refused(tokens.issue({ id, scope }), 409, "resource_already_exists");
  const page = await tokens.list({ prefix: id, limit: 1 });
  const listed = await collect(tokens.listAll({ prefix: id }));
  assert.deepEqual(page.accessTokens, listed);
  assert.deepEqual(
    listed.map((info) => [info.id, info.autoPrefixStreams, info.scope.ops]),
    [[id, true, ["append"]]],
  );
  await tokens.revoke({ id });
  await refused(tokens.revoke({ id }), 404, "access_token_not_found");
}

export async function usage_is_measured(world) {
  const { metrics } = world.s2;
  const stream = await world.stream();
  const basin = world.lastBasin;
  const ack = await stream.append(batch(["measured"]));
  const end = ack.end.timestamp.getTime();
  const span = { start: end - HOUR_MS, end };
  for (const set of ["active-basins", "account-ops"]) await metrics.account({ set, ...span });
  for (const set of ["storage", "append-ops", "read-ops", "read-throughput", "basin-ops"])
    await metrics.basin({ basin, set, ...span });
  await metrics.basin({ basin, set: "append-throughput", interval: "minute", ...span });
  await metrics.stream({ basin, stream: stream.name, set: "storage", ...span });
  const backwards = { set: "account-ops", start: end, end: end - 1000 };
  await refused(metrics.account(backwards), 422, "invalid");
}
