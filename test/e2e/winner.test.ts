// Many runs at once: one wins, the others leave by Busy at once and touch nothing.

import Redis from 'ioredis';
import { Flow, OUTPUT } from './support/flow';
import { Gate } from './support/gate';
import { goLive, redisCredential, setup, sharedN8n, unique } from './support/n8n';

const n8n = sharedN8n();
const gate = new Gate();
const redis = new Redis({ ...setup.redis, lazyConnect: true });

beforeAll(async () => {
  await gate.open();
  await redis.connect();
  // n8n loads the code of a node at its first use; that time is not the lock's.
  const path = unique('warm');
  const live = await goLive(n8n, await guarded(path));
  await live.call(path, { key: unique('warm') });
  (await gate.next()).leave();
  await live.finished(1);
});
afterAll(async () => {
  await gate.close();
  redis.disconnect();
});

/** Webhook → Acquire → a section that the gate holds → Release; Busy → Loser. */
async function guarded(path: string): Promise<Flow> {
  const flow = new Flow(unique('One at a time'), await redisCredential(n8n));
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key: '={{ $json.body.key }}', ttl: 60 }),
    flow.visit('Section', `=${gate.url}/{{ $json.body.key }}?execution={{ $execution.id }}`),
    flow.lock('Release', { operation: 'release' }),
  );
  return flow.link('Acquire', OUTPUT.busy, flow.noOp('Loser'));
}

test('of 20 webhooks at once on one key, one wins and 19 lose at once', async () => {
  const path = unique('twenty');
  const key = unique('w4ingest:lock:folder');
  const live = await goLive(n8n, await guarded(path));

  const answers = await Promise.all(Array.from({ length: 20 }, async (_, n) => await live.call(path, { key, n })));
  expect(answers.map((one) => one.status)).toEqual(Array(20).fill(200));

  const visit = await gate.next();
  await live.ended(19);
  const heldBy = await redis.get(key);
  expect(heldBy).toMatch(/^\d{16}$/);
  visit.leave();

  const runs = await live.finished(20);
  const winners = runs.filter((run) => run.items('Acquire', OUTPUT.acquired).length > 0);
  const losers = runs.filter((run) => run.items('Acquire', OUTPUT.busy).length > 0);
  expect(winners).toHaveLength(1);
  expect(losers).toHaveLength(19);
  expect(runs.map((run) => run.status)).toEqual(Array(20).fill('success'));
  expect(gate.mostInside(key)).toBe(1);
  expect(gate.visits.filter((one) => one.room === key)).toHaveLength(1);

  const [winner] = winners;
  expect(winner.lock('Acquire')).toMatchObject({ acquired: true, key, ttlSeconds: 60, fencingToken: Number(heldBy) });
  expect(winner.lock('Release')).toMatchObject({ released: true, key });
  for (const loser of losers) {
    // The node's own time: how long twenty whole executions take at once is up to n8n and the machine.
    expect(loser.nodeMs('Acquire')).toBeLessThan(2000);
    expect(loser.times('Section')).toBe(0);
    expect(loser.times('Release')).toBe(0);
    expect(loser.items('Loser')).toHaveLength(1);
    expect(loser.lock('Acquire', OUTPUT.busy)).toMatchObject({
      acquired: false,
      key,
      holder: { executionId: winner.id, workflowId: live.id, nodeName: 'Acquire', fencingToken: Number(heldBy) },
    });
  }
  expect(await redis.exists(key)).toBe(0);
});

test('of two calls the second is a loser, and its whole execution takes less than 2 s', async () => {
  const path = unique('two');
  const key = unique('w4ingest:lock:folder');
  const live = await goLive(n8n, await guarded(path));

  await live.call(path, { key });
  const visit = await gate.next();
  await live.call(path, { key });
  await live.ended(1);
  visit.leave();

  const [winner, loser] = await live.finished(2);
  expect(winner.lock('Release')).toMatchObject({ released: true, key });
  expect(loser.lock('Acquire', OUTPUT.busy)).toMatchObject({ acquired: false, key });
  expect(loser.items('Loser')).toHaveLength(1);
  expect(loser.tookMs).toBeLessThan(2000);
});

test('three keys run in parallel', async () => {
  const path = unique('three');
  const live = await goLive(n8n, await guarded(path));
  const keys = ['reports', 'invoices', 'orders'].map((folder) => unique(`w4ingest:lock:${folder}`));

  await Promise.all(keys.map(async (key) => await live.call(path, { key })));
  const visits = [await gate.next(), await gate.next(), await gate.next()];
  // All three are in at this moment: nobody has been let go.
  expect(gate.insideNow()).toBe(3);
  expect(visits.map((visit) => visit.room).sort()).toEqual([...keys].sort());
  for (const visit of visits) visit.leave();

  const runs = await live.finished(3);
  expect(runs.map((run) => run.lock('Release').released)).toEqual([true, true, true]);
  expect(runs.map((run) => run.items('Acquire', OUTPUT.busy))).toEqual([[], [], []]);
});

test('what came in goes out unchanged, on either output', async () => {
  const path = unique('unchanged');
  const key = unique('w4ingest:lock:unchanged');
  const live = await goLive(n8n, await guarded(path));

  await live.call(path, { key, nested: { list: [1, 'two', null] } });
  const visit = await gate.next();
  await live.call(path, { key, nested: { list: [1, 'two', null] } });
  await live.ended(1);
  visit.leave();

  const [winner, loser] = await live.finished(2);
  const { lock: won, ...wonItem } = winner.items('Acquire')[0];
  const { lock: lost, ...lostItem } = loser.items('Acquire', OUTPUT.busy)[0];
  expect(wonItem).toEqual(winner.items('Webhook')[0]);
  expect(lostItem).toEqual(loser.items('Webhook')[0]);
  expect(won?.acquired).toBe(true);
  expect(lost?.acquired).toBe(false);
});
