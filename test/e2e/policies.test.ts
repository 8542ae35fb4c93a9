// More than a mutex, in the real n8n: permits, once per event, only the newest, several keys, readers and writers.

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

/** Webhook → a lock → a section that the gate holds → Release. */
async function section(path: string, parameters: { operation: string; [name: string]: unknown }, room: string): Promise<LiveFlow> {
  const flow = new Flow(unique('Policies'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(path),
    flow.lock('Lock', parameters),
    flow.visit('Section', `=${gate.url}/${room}?n={{ $('Webhook').first().json.body.n }}`),
    flow.lock('Release', { operation: 'release', options: parameters.operation === 'acquireOnce' ? { doneResult: "={{ { n: $('Webhook').first().json.body.n } }}" } : {} }),
  );
  return await goLive(n8n, flow);
}

async function lineIs(key: string, length: number): Promise<void> {
  await until(`${length} in line`, async () => (await status(key)).queueLength === length);
}

test('Max Holders 2: of five executions never more than two are in, and all get in', async () => {
  const [path, key] = [unique('permits'), unique('api:lock:slots')];
  const live = await section(path, { operation: 'acquire', key, ttl: 60, whenBusy: 'wait', maxWait: 60, options: { maxHolders: 2 } }, key);
  for (let n = 0; n < 5; n++) await live.call(path, { n });
  await lineIs(key, 3);
  expect(await status(key)).toMatchObject({ state: 'held', holders: 2, maxHolders: 2, freePermits: 0 });
  for (let n = 0; n < 5; n++) (await gate.next()).leave();
  const runs = await live.finished(5);
  expect(gate.mostInside(key)).toBe(2);
  for (const run of runs) expect(run.lock('Lock')).toMatchObject({ acquired: true, maxHolders: 2 });
  for (const run of runs) expect(run.lock('Release')).toMatchObject({ released: true });
  expect(await redis.exists(key)).toBe(0);
});

test('Acquire Once: mine to do, being done, done before; a failure lets the repetition through', async () => {
  const [path, event] = [unique('once'), unique('orders:event:7')];
  const live = await section(path, { operation: 'acquireOnce', key: event, ttl: 60 }, event);
  await live.call(path, { n: 1 });
  const doing = await gate.next();
  await live.call(path, { n: 2 });
  await live.ended(1);
  doing.leave();
  await live.ended(2);
  await live.call(path, { n: 3 });
  const [first, second, third] = await live.finished(3);
  expect(second.lock('Lock', OUTPUT.busy)).toMatchObject({ reason: 'held', holder: { executionId: first.id } });
  expect(third.lock('Lock', OUTPUT.doneBefore)).toMatchObject({
    acquired: false,
    reason: 'doneBefore',
    done: { executionId: first.id, workflowId: live.id, nodeName: 'Lock', result: { n: 1 } },
  });
  expect(String((third.lock('Lock', OUTPUT.doneBefore).done as Record<string, unknown>).executionUrl)).toContain(`executions/${first.id}`);
  expect([second.times('Section'), third.times('Section')]).toEqual([0, 0]);

  const [failing, other] = [unique('failing'), unique('orders:event:8')];
  const flow = new Flow(unique('Fails once'), await redisCredential(n8n));
  flow.chain(flow.webhook(failing), flow.lock('Lock', { operation: 'acquireOnce', key: other, ttl: 60 }), flow.code('Work', "if ($('Webhook').first().json.body.fail) throw new Error('no'); return $input.all();"));
  const fails = await goLive(n8n, flow);
  await fails.call(failing, { fail: true });
  await fails.ended(1);
  await fails.call(failing, {});
  await fails.ended(2);
  await fails.call(failing, {});
  const runs = await fails.finished(3);
  expect(runs.map((run) => run.status)).toEqual(['error', 'success', 'success']);
  // Without a Release: marked as the second one ended.
  expect(runs[1].lock('Lock')).toMatchObject({ acquired: true });
  expect(runs[2].lock('Lock', OUTPUT.doneBefore)).toMatchObject({ done: { executionId: runs[1].id } });
});

test('Only the Newest: after a burst of 50, the one that was at it and the newest have done the work', async () => {
  const [path, key] = [unique('newest'), unique('crm:lock:contact')];
  const seen = new Set<string>();
  const live = await section(path, { operation: 'acquire', key, ttl: 60, whenBusy: 'wait', maxWait: 120, options: { waitingPolicy: 'newest' } }, key);
  await live.call(path, { n: 0 });
  const running = await gate.next();
  for (let n = 1; n <= 49; n++) {
    await live.call(path, { n });
    // In this order: the one that is called next has to come later.
    await until(`call ${n} to be in line`, async () => {
      const newest = await redis.hget(`{${key}}:rl:lock`, 'newest');
      if (newest === null) return false;
      const asked = await redis.hget(`{${key}}:rl:wait`, newest);
      const { executionId } = JSON.parse(String(asked).replace(/^[^{]*/, '')) as { executionId: string };
      seen.add(executionId);
      return seen.size === n;
    }, { everyMs: 10 });
  }
  await live.ended(48);
  expect((await status(key)).queueLength).toBe(1);
  running.leave();
  const last = await gate.next();
  expect(last.says.n).toBe('49');
  last.leave();
  const runs = await live.finished(50);
  expect(runs.filter((run) => run.times('Section') === 1)).toHaveLength(2);
  const out = runs.filter((run) => run.times('Section') === 0);
  for (const run of out) expect(run.lock('Lock', OUTPUT.busy)).toMatchObject({ reason: 'superseded', holder: { executionId: runs[0].id } });
  expect(gate.mostInside(key)).toBe(1);
});

test('Settle Time: of a burst on a free lock exactly the last does the work', async () => {
  const [path, key] = [unique('settle'), unique('crm:lock:contact')];
  const options = { waitingPolicy: 'newest', settleTime: 2, settleAtMost: 60 };
  const live = await section(path, { operation: 'acquire', key, ttl: 60, whenBusy: 'wait', maxWait: 60, options }, key);
  for (let n = 0; n < 5; n++) await live.call(path, { n });
  const visit = await gate.next();
  visit.leave();
  const runs = await live.finished(5);
  expect(runs.filter((run) => run.times('Section') === 1)).toHaveLength(1);
  expect(runs.flatMap((run) => run.items('Lock', OUTPUT.busy)).map(({ lock }) => lock?.reason)).toEqual(Array(4).fill('superseded'));
});

test('several keys: all or none, and no two wait for each other', async () => {
  const path = unique('transfer');
  const [a, b] = [unique('account:a'), unique('account:b')].sort();
  const room = unique('transfer');
  const live = await section(path, { operation: 'acquire', key: '={{ [$json.body.from, $json.body.to] }}', ttl: 60, whenBusy: 'wait', maxWait: 60 }, room);
  await live.call(path, { n: 0, from: a, to: b });
  const first = await gate.next();
  for (let n = 1; n <= 4; n++) await live.call(path, n % 2 ? { n, from: b, to: a } : { n, from: a, to: b });
  await lineIs(a, 4);
  expect((await status(b)).queueLength).toBe(0);
  first.leave();
  for (let n = 1; n <= 4; n++) (await gate.next()).leave();
  const runs = await live.finished(5);
  expect(gate.mostInside(room)).toBe(1);
  for (const run of runs) {
    expect(run.lock('Lock')).toMatchObject({ acquired: true, keys: [a, b] });
    expect(run.lock('Release')).toMatchObject({ released: true, keys: [a, b] });
  }
  expect(await redis.exists(a, b)).toBe(0);
});

test('readers are in together, a writer is in alone, and a later reader waits behind it', async () => {
  const key = unique('catalog:lock');
  const wait = { ttl: 60, whenBusy: 'wait', maxWait: 60, key };
  const [read, write] = [unique('read'), unique('write')];
  const [readers, writers] = [unique('readers'), unique('writers')];
  const reading = await section(read, { operation: 'acquire', ...wait, options: { mode: 'shared' } }, readers);
  const writing = await section(write, { operation: 'acquire', ...wait }, writers);
  await reading.call(read, { n: 1 });
  await reading.call(read, { n: 2 });
  const both = [await gate.next(), await gate.next()];
  await writing.call(write, { n: 3 });
  await lineIs(key, 1);
  await reading.call(read, { n: 4 });
  await lineIs(key, 2);
  for (const visit of both) visit.leave();
  const writer = await gate.next();
  expect(writer.says.n).toBe('3');
  await lineIs(key, 1);
  writer.leave();
  const later = await gate.next();
  expect(later.says.n).toBe('4');
  later.leave();
  const runs = await reading.finished(3);
  await writing.finished(1);
  expect([gate.mostInside(readers), gate.mostInside(writers)]).toEqual([2, 1]);
  expect(runs.map((run) => run.lock('Lock').mode)).toEqual(['shared', 'shared', 'shared']);
});
