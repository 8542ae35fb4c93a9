// Release gives back one's own lock and nobody else's. Its three outcomes: it was mine, nobody has it, somebody else has it.

import Redis from 'ioredis';
import { until } from '../../scripts/lib/wait';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, redisCredential, setup, sharedN8n, unique } from './support/n8n';

const n8n = sharedN8n();
const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });

beforeAll(async () => {
  await gate.open();
  await redis.connect();
});
afterAll(async () => {
  await gate.close();
  redis.disconnect();
});

/** Webhook → Acquire with the caller's TTL, which nothing renews → a section that the gate holds → Release → Release Again. */
async function guarded(path: string, key: string): Promise<Flow> {
  const flow = new Flow(unique('Release'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', {
      operation: 'acquire',
      key,
      ttl: '={{ $json.body.ttl }}',
      options: { note: 'nightly import', keepAlive: false },
    }),
    flow.visit('Section', `=${gate.url}/${key}?lockId={{ $json.lock.lockId }}`),
    flow.lock('Release', { operation: 'release' }),
    flow.lock('Release Again', { operation: 'release' }),
  );
  return flow;
}

test('a lock that another run took meanwhile: Not Held, with the holder, and nothing changes', async () => {
  const path = unique('overlap');
  const key = unique('pay:lock:order');
  const live = await goLive(n8n, await guarded(path, key));

  await live.call(path, { ttl: 2 });
  const late = await gate.next();
  await until('the lock to expire', async () => (await redis.exists(key)) === 0);
  await live.call(path, { ttl: 60 });
  const newer = await gate.next();
  const before = [await redis.get(key), await redis.pttl(key)] as const;
  late.leave();
  await live.ended(1);
  const after = [await redis.get(key), await redis.pttl(key)] as const;
  newer.leave();

  const [first, second] = await live.finished(2);
  expect(first.status).toBe('success');
  expect(first.items('Release', OUTPUT.released)).toEqual([]);
  expect(first.lock('Release', OUTPUT.notHeld)).toMatchObject({
    released: false,
    overlapped: true,
    key,
    holder: { executionId: second.id, workflowId: live.id, nodeName: 'Acquire' },
  });
  expect(after[0]).toBe(before[0]);
  // Neither renewed nor shortened: what is left is what was left, less the time between the two looks.
  expect(after[1]).toBeLessThanOrEqual(before[1]);
  expect(after[1]).toBeGreaterThan(before[1] - 10_000);
  expect(second.lock('Release')).toMatchObject({ released: true, key });
  expect(await redis.exists(key)).toBe(0);
});

test('an expired lock that nobody took: Released, and said so; a second Release: already released', async () => {
  const path = unique('expired');
  const key = unique('pay:lock:order');
  const live = await goLive(n8n, await guarded(path, key));

  await live.call(path, { ttl: 1 });
  const late = await gate.next();
  await until('the lock to expire', async () => (await redis.exists(key)) === 0);
  late.leave();
  await live.ended(1);
  await live.call(path, { ttl: 60 });
  (await gate.next()).leave();

  const [expired, punctual] = await live.finished(2);
  expect(expired.lock('Release')).toMatchObject({ released: true, expiredBefore: true, key });
  expect(punctual.lock('Release')).toMatchObject({ released: true, key });
  expect(punctual.lock('Release')).not.toHaveProperty('expiredBefore', true);
  expect(punctual.lock('Release Again')).toMatchObject({ released: true, alreadyReleased: true, key });
});

test('by lock id, from another workflow: the right one frees it, a wrong one names the holder and changes nothing', async () => {
  const [path, otherPath] = [unique('owner'), unique('other')];
  const key = unique('pay:lock:order');
  const live = await goLive(n8n, await guarded(path, key));
  const flow = new Flow(unique('Release by id'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(otherPath),
    flow.lock('Release', { operation: 'release', target: 'lockId', key, lockId: '={{ $json.body.lockId }}' }),
  );
  const other = await goLive(n8n, flow);

  await live.call(path, { ttl: 60 });
  const holder = await gate.next();
  const before = await redis.get(key);
  await other.call(otherPath, { lockId: 'not-the-one' });
  await other.ended(1);
  expect(await redis.get(key)).toBe(before);
  await other.call(otherPath, { lockId: holder.says.lockId });
  const [wrong, right] = await other.finished(2);
  expect(await redis.exists(key)).toBe(0);
  holder.leave();

  const [owner] = await live.finished(1);
  expect(wrong.items('Release', OUTPUT.released)).toEqual([]);
  expect(wrong.lock('Release', OUTPUT.notHeld)).toMatchObject({
    released: false,
    key,
    holder: { executionId: owner.id },
  });
  expect(right.lock('Release')).toMatchObject({ released: true, key });
  expect(owner.lock('Release')).toMatchObject({ released: true, alreadyReleased: true, key });
});

test('the loser learns who holds the lock, since when and for how long', async () => {
  const path = unique('record');
  const key = unique('pay:lock:order');
  const flow = await guarded(path, key);
  const live = await goLive(n8n, flow);

  await live.call(path, { ttl: 60 });
  const holder = await gate.next();
  await live.call(path, { ttl: 60 });
  await live.ended(1);
  holder.leave();

  const [winner, loser] = await live.finished(2);
  const record = loser.lock('Acquire', OUTPUT.busy).holder as Record<string, unknown>;
  expect(record).toMatchObject({
    executionId: winner.id,
    workflowId: live.id,
    workflowName: flow.name,
    nodeName: 'Acquire',
    note: 'nightly import',
    fencingToken: winner.lock('Acquire').fencingToken,
  });
  expect(record.executionUrl).toMatch(new RegExp(`/workflow/${live.id}/executions/${winner.id}$`));
  expect(record.host).toEqual(expect.any(String));
  expect(Date.parse(String(record.acquiredAt))).toBeGreaterThanOrEqual(Date.parse(winner.execution.startedAt) - 1000);
  expect(Date.parse(String(record.acquiredAt))).toBeLessThanOrEqual(Date.now() + 1000);
  expect(record.expiresInSeconds).toBeGreaterThan(50);
  expect(record.expiresInSeconds).toBeLessThanOrEqual(60);
  // The lock id is the holder's secret: with it anybody could release.
  expect(JSON.stringify(loser.items('Acquire', OUTPUT.busy))).not.toContain(String(winner.lock('Acquire').lockId));
});
