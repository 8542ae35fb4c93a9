// Steal: a dead holder's lock is taken over by exactly one of those who try.

import Redis from 'ioredis';
import { until } from '../../scripts/lib/wait';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, redisCredential, setup, sharedN8n, unique } from './support/n8n';
import type { LiveFlow } from './support/n8n';

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

/** Holds the lock in a section and then finds out what became of it. */
async function holderFlow(path: string, key: string): Promise<LiveFlow> {
  const flow = new Flow(unique('Holder'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key, ttl: 120 }),
    flow.visit('Section', `=${gate.url}/${key}?token={{ $json.lock.fencingToken }}`),
    flow.lock('Beat', { operation: 'heartbeat' }),
  );
  flow.link('Beat', OUTPUT.lost, flow.lock('Release', { operation: 'release' }));
  return await goLive(n8n, flow);
}

/** Steals, and shows at the gate that it did. */
async function thiefFlow(path: string, key: string, steal: Record<string, unknown>): Promise<LiveFlow> {
  const flow = new Flow(unique('Thief'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(path),
    flow.lock('Steal', { operation: 'steal', key, ttl: 60, ...steal }),
    flow.visit('Stolen Section', `${gate.url}/stolen-${key}`),
    flow.lock('Release', { operation: 'release' }),
  );
  flow.link('Steal', OUTPUT.notStolen, flow.noOp('Too Late'));
  return await goLive(n8n, flow);
}

test.each([
  ['by the fencing token that was seen', { stealIf: 'fencingToken', fencingToken: '={{ $json.body.token }}' }],
  ['because its last sign of life is too old', { stealIf: 'stale', staleAfter: 2 }],
])('of 8 executions that steal a lock %s, exactly one gets it', async (_, steal) => {
  const [holderPath, thiefPath] = [unique('holder'), unique('thief')];
  const key = unique('crm:lock:contact');
  const holders = await holderFlow(holderPath, key);
  const thieves = await thiefFlow(thiefPath, key, steal);

  await holders.call(holderPath);
  const holder = await gate.next();
  await until('the holder to look dead for 2 s', async () => (await redis.pttl(key)) < 117_500);
  await Promise.all(
    Array.from({ length: 8 }, async () => await thieves.call(thiefPath, { token: Number(holder.says.token) })),
  );
  const thief = await gate.next();
  await thieves.ended(7);
  const nowHeldBy = Number(await redis.get(key));
  holder.leave();
  const [robbed] = await holders.finished(1);
  thief.leave();

  const runs = await thieves.finished(8);
  const winners = runs.filter((run) => run.items('Steal', OUTPUT.stolen).length > 0);
  const late = runs.filter((run) => run.items('Too Late').length > 0);
  expect(winners).toHaveLength(1);
  expect(late).toHaveLength(7);
  expect(gate.visits.filter((one) => one.room === `stolen-${key}`)).toHaveLength(1);

  const [winner] = winners;
  expect(winner.lock('Steal')).toMatchObject({
    stolen: true,
    key,
    fencingToken: nowHeldBy,
    previousHolder: { executionId: robbed.id, fencingToken: Number(holder.says.token) },
  });
  expect(nowHeldBy).toBeGreaterThan(Number(holder.says.token));
  for (const run of late) expect(run.lock('Steal', OUTPUT.notStolen)).toMatchObject({ stolen: false, key });
  // The robbed one is told at its next heartbeat and cannot free what is not its own any more.
  expect(robbed.lock('Beat', OUTPUT.lost)).toMatchObject({ alive: false, key, holder: { executionId: winner.id } });
  expect(robbed.lock('Release', OUTPUT.notHeld)).toMatchObject({
    released: false,
    overlapped: true,
    key,
    holder: { executionId: winner.id },
  });
  expect(winner.lock('Release')).toMatchObject({ released: true, key });
  expect(await redis.exists(key)).toBe(0);
});

test('a holder that gives signs of life is not robbed', async () => {
  const [holderPath, thiefPath] = [unique('holder'), unique('thief')];
  const key = unique('crm:lock:contact');
  const holders = await holderFlow(holderPath, key);
  const thieves = await thiefFlow(thiefPath, key, { stealIf: 'stale', staleAfter: 60 });

  await holders.call(holderPath);
  const holder = await gate.next();
  const before = await redis.get(key);
  await thieves.call(thiefPath);
  const [thief] = await thieves.finished(1);
  expect(await redis.get(key)).toBe(before);
  holder.leave();

  const [kept] = await holders.finished(1);
  expect(thief.lock('Steal', OUTPUT.notStolen)).toMatchObject({ stolen: false, key, holder: { executionId: kept.id } });
  expect(kept.lock('Beat')).toMatchObject({ alive: true, key });
});
