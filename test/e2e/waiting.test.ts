// When Busy: Wait. Runs stand in line, enter in the order of their arrival, and leave the line when their time is up
// or when they are stopped.

import Redis from 'ioredis';
import { until } from '../../scripts/lib/wait';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, redisCredential, setup, sharedN8n, unique } from './support/n8n';
import type { LiveFlow } from './support/n8n';
import { statusOf } from './support/status';

const n8n = sharedN8n();
const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });
let status: (key: string) => Promise<Record<string, unknown>>;

beforeAll(async () => {
  await gate.open();
  await redis.connect();
  status = await statusOf(n8n, await redisCredential(n8n));
});
afterAll(async () => {
  await gate.close();
  redis.disconnect();
});

/** Webhook → Acquire, waiting (nothing renews its lock) → a section that the gate holds → Release; Timed Out → Gave Up. */
async function waitingFlow(path: string): Promise<LiveFlow> {
  const flow = new Flow(unique('Wait in line'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', {
      operation: 'acquire',
      key: '={{ $json.body.key }}',
      ttl: 60,
      whenBusy: 'wait',
      maxWait: '={{ $json.body.maxWait }}',
      options: { keepAlive: false },
    }),
    flow.visit('Section', `=${gate.url}/{{ $json.body.key }}?n={{ $json.body.n }}&token={{ $json.lock.fencingToken }}`),
    flow.lock('Release', { operation: 'release' }),
  );
  flow.link('Acquire', OUTPUT.timedOut, flow.noOp('Gave Up'));
  return await goLive(n8n, flow);
}

async function lineIs(key: string, length: number): Promise<void> {
  await until(`${length} in line`, async () => (await status(key)).queueLength === length);
}

test('waiting executions enter one by one, in the order of their arrival', async () => {
  const path = unique('line');
  const key = unique('crm:lock:contact');
  const live = await waitingFlow(path);

  await live.call(path, { key, maxWait: 60, n: 0 });
  const visits = [await gate.next()];
  for (let n = 1; n <= 5; n++) {
    await live.call(path, { key, maxWait: 60, n });
    await lineIs(key, n);
  }
  visits[0].leave();
  for (let n = 1; n <= 5; n++) {
    const visit = await gate.next();
    visits.push(visit);
    visit.leave();
  }

  expect(visits.map((visit) => visit.says.n)).toEqual(['0', '1', '2', '3', '4', '5']);
  expect(gate.mostInside(key)).toBe(1);
  const tokens = visits.map((visit) => Number(visit.says.token));
  expect(tokens).toEqual([...tokens].sort((a, b) => a - b));
  expect(new Set(tokens).size).toBe(6);

  const runs = await live.finished(6);
  expect(runs.map((run) => run.lock('Release').released)).toEqual(Array(6).fill(true));
  expect(runs[0].lock('Acquire').waitedMs).toBeLessThan(1000);
  for (const run of runs.slice(1)) expect(run.lock('Acquire').waitedMs).toBeGreaterThan(0);
  expect(await redis.exists(key)).toBe(0);
});

test('an execution that waited Max Wait in vain leaves by Timed Out, and the holder keeps its lock', async () => {
  const path = unique('timeout');
  const key = unique('crm:lock:contact');
  const live = await waitingFlow(path);

  await live.call(path, { key, maxWait: 60, n: 0 });
  const holder = await gate.next();
  const heldBy = await redis.get(key);
  await live.call(path, { key, maxWait: 2, n: 1 });
  await live.ended(1);
  const [held, leftMs] = [await redis.get(key), await redis.pttl(key)];
  await lineIs(key, 0);
  holder.leave();

  const [first, second] = await live.finished(2);
  expect(held).toBe(heldBy);
  // Not renewed by the one that waited: 60 s less the wait.
  expect(leftMs).toBeLessThan(58_100);
  expect(second.status).toBe('success');
  expect(second.items('Acquire', OUTPUT.acquired)).toEqual([]);
  expect(second.items('Acquire', OUTPUT.busy)).toEqual([]);
  expect(second.items('Gave Up')).toHaveLength(1);
  expect(second.times('Section')).toBe(0);
  const lock = second.lock('Acquire', OUTPUT.timedOut);
  expect(lock).toMatchObject({ acquired: false, key, holder: { executionId: first.id } });
  expect(lock.waitedMs).toBeGreaterThanOrEqual(1900);
  expect(lock.waitedMs).toBeLessThan(3000);
  expect(first.lock('Release').released).toBe(true);
});

test('stopping a waiting execution ends it at once, and the next in line is served in its place', async () => {
  const path = unique('stopped');
  const key = unique('crm:lock:contact');
  const live = await waitingFlow(path);

  await live.call(path, { key, maxWait: 60, n: 0 });
  const holder = await gate.next();
  await live.call(path, { key, maxWait: 60, n: 1 });
  await lineIs(key, 1);
  const waiting = (await live.runningIds())[1];
  await live.call(path, { key, maxWait: 60, n: 2 });
  await lineIs(key, 2);

  const stopAt = Date.now();
  await live.stop(waiting);
  await live.ended(1);
  expect(Date.now() - stopAt).toBeLessThan(2000);
  await lineIs(key, 1);
  holder.leave();
  const next = await gate.next();
  next.leave();

  const runs = await live.finished(3);
  expect(next.says.n).toBe('2');
  expect(runs.map((run) => run.status)).toEqual(['success', 'canceled', 'success']);
  expect(runs[1].id).toBe(waiting);
  expect(runs[1].times('Section')).toBe(0);
  expect(await redis.exists(key)).toBe(0);
  expect((await status(key)).state).toBe('free');
});
