// Two workers of one n8n: who holds what is decided in Redis, whichever process runs the execution, and whatever becomes of it.

import Redis from 'ioredis';
import type { CredentialReference } from '../../scripts/lib/n8n-api';
import { until } from '../../scripts/lib/wait';
import { Flow, OUTPUT } from './support/flow';
import { Gate, type Visit } from './support/gate';
import { goLive, redisCredential, setup, unique, type LiveFlow } from './support/n8n';
import { QueueMode } from './support/queueMode';

const queue = new QueueMode();
const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });
let credential: CredentialReference;

beforeAll(async () => {
  await gate.open();
  await redis.connect();
  await queue.start();
  credential = await redisCredential(queue.api);
}, 300_000);
afterAll(async () => {
  await queue.stop();
  await gate.close();
  redis.disconnect();
}, 60_000);

/** Acquire, the section, and what the holder says of the lock behind it. */
async function section(key: string, parameters: Record<string, unknown>, settings = {}): Promise<{ live: LiveFlow; call(): Promise<unknown> }> {
  const path = unique('queued');
  const flow = new Flow(unique('Queued'), credential);
  Object.assign(flow.settings, settings);
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key, ttl: 600, ...parameters }),
    flow.visit('Section', `${gate.url}/${key}`),
    flow.lock('Heartbeat', { operation: 'heartbeat' }),
    flow.visit('Alive', `${gate.url}/alive-${key}`),
  );
  const say = `=${gate.url}/lost-${key}?alive={{ $json.lock.alive }}&reason={{ $json.lock.reason }}&by={{ $json.lock.holder.executionId }}`;
  flow.link('Heartbeat', OUTPUT.lost, flow.visit('Lost', say));
  flow.link('Lost', 0, flow.lock('Release', { operation: 'release' }));
  flow.link('Release', OUTPUT.notHeld, flow.visit('Not Held', `=${gate.url}/notHeld-${key}?released={{ $json.lock.released }}&reason={{ $json.lock.reason }}`));
  const live = await goLive(queue.api, flow);
  return { live, call: async () => await live.call(path) };
}

/** The worker that holds the lock, as its record in Redis says. */
async function workerOf(key: string) {
  const records = await redis.hgetall(`{${key}}:rl:lock`);
  const record = Object.entries(records).find(([field]) => field.startsWith('@'))![1];
  const { pid } = JSON.parse(record.slice(record.indexOf('{'))) as { pid: number };
  const worker = queue.workers.find((each) => each.pid === pid);
  if (!worker) throw new Error(`Process ${pid} is no worker`);
  return worker;
}

async function replace(worker: (typeof queue.workers)[number], name: string): Promise<void> {
  queue.workers[queue.workers.indexOf(worker)] = await queue.startWorker(name);
}

test('executions of both workers enter one after the other, and none is left out', async () => {
  const key = unique('job:lock');
  const { live, call } = await section(key, { whenBusy: 'wait', maxWait: 120 });
  await Promise.all(Array.from({ length: 12 }, call));
  const pids = new Set<number>();
  for (let i = 0; i < 12; i++) {
    const visit = await gate.next(60_000);
    pids.add((await workerOf(key)).pid);
    visit.leave();
    (await gate.next()).leave();
  }
  await live.finished(12);
  expect(gate.mostInside(key)).toBe(1);
  expect(pids.size).toBe(2);
  expect(await redis.exists(key)).toBe(0);
});

test('a worker that is killed holds the lock for its TTL, and then the execution that waits on the other one enters', async () => {
  const key = unique('job:lock');
  const { call } = await section(key, { ttl: 6, whenBusy: 'wait', maxWait: 60 });
  await call();
  await gate.next();
  const worker = await workerOf(key);
  // Bull gives a job to whoever asks first: until one waits on the other worker.
  const waiting = async () => Object.values(await redis.hgetall(`{${key}}:rl:wait`)).map((text) => (JSON.parse(text.slice(text.indexOf('{'))) as { pid: number }).pid);
  await until('one to wait on the other worker', async () => {
    if ((await waiting()).some((pid) => pid !== worker.pid)) return true;
    await call();
    return false;
  }, { everyMs: 500 });
  const killedAt = Date.now();
  await worker.kill();
  const next = await gate.next(30_000);
  expect(Date.now() - killedAt).toBeLessThan(12_000);
  expect((await workerOf(key)).pid).not.toBe(worker.pid);
  next.leave();
  (await gate.next()).leave();
  await replace(worker, 'three');
});

test('where its TTL is long, the error workflow frees it, as n8n gives the killed worker’s execution up', async () => {
  const key = unique('job:lock');
  const cleaning = new Flow(unique('Clean up'), credential);
  cleaning.chain(cleaning.add('Error Trigger', 'n8n-nodes-base.errorTrigger', 1, {}), cleaning.lock('Release', { operation: 'release', target: 'otherExecution' }));
  const clean = await goLive(queue.api, cleaning);
  const { live, call } = await section(key, { ttl: 600 }, { errorWorkflow: clean.id });
  await call();
  await gate.next();
  const [killedId] = await live.runningIds();
  const worker = await workerOf(key);
  await worker.kill();
  expect(await redis.pttl(key)).toBeGreaterThan(300_000);
  await replace(worker, 'four');
  await until('the error workflow to free it', async () => (await redis.exists(key)) === 0, { timeoutMs: 150_000 });
  const [cleaned] = await clean.finished(1);
  expect(cleaned.lock('Release')).toMatchObject({ released: true, ofExecution: killedId, keys: [key] });
});

test('a worker that stood still past its TTL is told that it lost the lock, and changes nothing any more', async () => {
  const key = unique('job:lock');
  const { call } = await section(key, { ttl: 4 });
  await call();
  const frozen = await gate.next();
  const worker = await workerOf(key);
  worker.signal('SIGSTOP');
  try {
    await until('its TTL to be over', async () => (await redis.exists(key)) === 0, { timeoutMs: 20_000, everyMs: 50 });
    // The other worker takes whatever Bull does not leave with the frozen one.
    const before = gate.visits.length;
    await until('another execution to enter', async () => {
      if (gate.visits.length > before) return true;
      await call();
      return false;
    }, { timeoutMs: 60_000, everyMs: 2000 });
    await gate.next();
  } finally {
    worker.signal('SIGCONT');
  }
  const token = await redis.get(key);
  frozen.leave();
  const told = new Map<string, Visit>();
  await until('the stopped one to have been told', async () => {
    for (const visit of gate.visits) told.set(visit.room, visit);
    told.get(`lost-${key}`)?.leave();
    return told.has(`notHeld-${key}`);
  }, { timeoutMs: 30_000 });
  expect(told.get(`lost-${key}`)!.says).toMatchObject({ alive: 'false', reason: 'expired' });
  expect(told.get(`notHeld-${key}`)!.says).toMatchObject({ released: 'false', reason: 'expired' });
  expect(await redis.get(key)).toBe(token);
  for (const visit of gate.visits) visit.leave();
});
