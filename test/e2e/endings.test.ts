// What becomes of a lock when its execution ends, in a workflow with one Acquire node and no Release.

import Redis from 'ioredis';
import { until } from '../../scripts/lib/wait';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, makeCallable, redisCredential, setup, sharedN8n, unique } from './support/n8n';

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

/** A workflow of that shape, live. `more` adds nodes behind the section. */
async function section(key: string, { ttl = 60, settings = {}, more = [] as Array<(flow: Flow) => string> } = {}) {
  const path = unique('ending');
  const flow = new Flow(unique('Ending'), await redisCredential(n8n));
  Object.assign(flow.settings, settings);
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key, ttl }),
    flow.visit('Section', `${gate.url}/${key}`),
    ...more.map((add) => add(flow)),
  );
  const live = await goLive(n8n, flow);
  return { live, start: async () => void (await live.call(path)) };
}

/** What a second execution finds. */
async function entersNow(key: string): Promise<boolean> {
  const { live, start } = await section(key);
  const before = gate.visits.length;
  await start();
  await until('the second execution', async () => gate.visits.length > before || (await live.runningIds()).length === 0, { everyMs: 50 });
  const isIn = gate.visits.length > before;
  if (isIn) (await gate.next()).leave();
  const [run] = await live.finished(1);
  expect(run.items('Acquire', isIn ? OUTPUT.acquired : OUTPUT.busy)).toHaveLength(1);
  return isIn;
}

const left = async (key: string) => await redis.pttl(key);

test('a normal end frees it', async () => {
  const key = unique('job:lock');
  const { live, start } = await section(key);
  await start();
  const visit = await gate.next();
  expect(await left(key)).toBeGreaterThan(30_000);
  visit.leave();
  await live.finished(1);
  expect(await redis.exists(key)).toBe(0);
  expect(await entersNow(key)).toBe(true);
});

test('an error in the middle frees it', async () => {
  const key = unique('job:lock');
  const { live, start } = await section(key, { more: [(flow) => flow.code('Boom', 'throw new Error("boom");')] });
  await start();
  (await gate.next()).leave();
  const [run] = await live.finished(1);
  expect(run.status).toBe('error');
  expect(await redis.exists(key)).toBe(0);
  expect(await entersNow(key)).toBe(true);
});

test('a stop leaves it for the grace time, while the code that was stopped may still run', async () => {
  const key = unique('job:lock');
  const { live, start } = await section(key);
  await start();
  const visit = await gate.next();
  const [id] = await live.runningIds();
  await live.stop(id);
  await until('the grace time', async () => (await left(key)) <= 30_000, { everyMs: 20 });
  expect(await left(key)).toBeGreaterThan(20_000);
  expect(await entersNow(key)).toBe(false);
  visit.leave();
});

test('a time limit of the workflow leaves it for the grace time too', async () => {
  const key = unique('job:lock');
  const { live, start } = await section(key, { settings: { executionTimeout: 3 } });
  await start();
  const visit = await gate.next();
  await until('the grace time', async () => (await left(key)) <= 30_000, { timeoutMs: 30_000, everyMs: 20 });
  expect(await left(key)).toBeGreaterThan(10_000);
  expect(await entersNow(key)).toBe(false);
  visit.leave();
  await live.ended(1);
});

test('a run of three times its TTL keeps it', async () => {
  const key = unique('job:lock');
  const { live, start } = await section(key, { ttl: 2 });
  await start();
  const visit = await gate.next();
  const token = await redis.get(key);
  const began = Date.now();
  await until('three TTLs', async () => {
    expect(await redis.get(key)).toBe(token);
    return Date.now() - began > 6000;
  }, { everyMs: 50 });
  visit.leave();
  await live.finished(1);
  expect(await redis.exists(key)).toBe(0);
});

test('a Wait of 90 s, for which n8n suspends the execution, keeps it; the Heartbeat behind it takes it up again', async () => {
  const key = unique('job:lock');
  const { live, start } = await section(key, {
    ttl: 20,
    more: [
      (flow) => flow.add('Wait', 'n8n-nodes-base.wait', 1.1, { amount: 90, unit: 'seconds' }),
      (flow) => flow.lock('Heartbeat', { operation: 'heartbeat' }),
      (flow) => flow.visit('Again', `${gate.url}/${key}`),
    ],
  });
  await start();
  const before = await gate.next();
  const token = await redis.get(key);
  before.leave();
  await until('the Wait', async () => (await left(key)) > 60_000, { everyMs: 50 });
  expect(await left(key)).toBeLessThanOrEqual(110_000);
  expect(await entersNow(key)).toBe(false);

  const after = await gate.next(150_000);
  expect(await redis.get(key)).toBe(token);
  expect(await left(key)).toBeLessThanOrEqual(20_000);
  after.leave();
  const [run] = await live.finished(1);
  expect(run.lock('Heartbeat')).toMatchObject({ alive: true, key, fencingToken: Number(token) });
  expect(await redis.exists(key)).toBe(0);
});

test('an error workflow of one node frees what the failed execution kept', async () => {
  const key = unique('job:lock');
  const credential = await redisCredential(n8n);
  const cleaning = new Flow(unique('Clean up'), credential);
  cleaning.chain(
    cleaning.add('Error Trigger', 'n8n-nodes-base.errorTrigger', 1, {}),
    cleaning.lock('Release', { operation: 'release', target: 'otherExecution' }),
  );
  const clean = await makeCallable(n8n, cleaning);

  const path = unique('ending');
  const flow = new Flow(unique('Ending'), credential);
  Object.assign(flow.settings, { errorWorkflow: clean.id });
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key: `={{ "${key}" }}`, ttl: 600, options: { releaseOnEnd: 'success' } }),
    flow.code('Boom', 'throw new Error("boom");'),
  );
  const live = await goLive(n8n, flow);
  await live.call(path);
  const [failed] = await live.finished(1);
  const [cleaned] = await clean.finished(1);
  expect(cleaned.lock('Release')).toMatchObject({ released: true, ofExecution: failed.id, keys: [key] });
  expect(await redis.exists(key)).toBe(0);
});

test('Run Workflow holds the lock around another workflow, and gives it back', async () => {
  const key = unique('job:lock');
  const credential = await redisCredential(n8n);
  const child = new Flow(unique('Child'), credential);
  child.chain(child.calledByOthers(), child.visit('Section', `${gate.url}/${key}`));
  const { id } = await makeCallable(n8n, child);
  const path = unique('running');
  const flow = new Flow(unique('Caller'), credential);
  flow.chain(
    flow.webhook(path),
    flow.lock('Run', { operation: 'runWorkflow', key, ttl: 60, workflowId: { __rl: true, mode: 'id', value: id } }),
  );
  const live = await goLive(n8n, flow);
  await live.call(path);
  const visit = await gate.next();
  const token = Number(await redis.get(key));
  expect(await entersNow(key)).toBe(false);
  visit.leave();
  const [run] = await live.finished(1);
  expect(run.lock('Run')).toMatchObject({ acquired: true, released: true, key, fencingToken: token });
  expect(await redis.exists(key)).toBe(0);
});
