// Heartbeat puts the whole TTL back, and says Lost when somebody else may be in.

import Redis from 'ioredis';
import { startRedis } from '../../scripts/lib/redis';
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

test('PTTL jumps back to the whole TTL at each heartbeat', async () => {
  const path = unique('heartbeat');
  const key = unique('w4ingest:lock:folder');
  const flow = new Flow(unique('Heartbeats'), await redisCredential(n8n));
  const section = (name: string) => flow.visit(name, `${gate.url}/${key}`);
  flow.chain(
    flow.webhook(path),
    flow.lock('Acquire', { operation: 'acquire', key, ttl: 30 }),
    section('First'),
    flow.lock('Beat 1', { operation: 'heartbeat' }),
    section('Second'),
    flow.lock('Beat 2', { operation: 'heartbeat' }),
    section('Third'),
    flow.lock('Release', { operation: 'release' }),
  );
  const live = await goLive(n8n, flow);
  await live.call(path);

  for (let section = 1; section <= 3; section++) {
    const visit = await gate.next();
    const leftMs = await redis.pttl(key);
    expect(leftMs).toBeGreaterThan(29_000);
    expect(leftMs).toBeLessThanOrEqual(30_000);
    // Stay until a good part of the TTL is gone, so that the next look cannot be taken for this one.
    await until('a second and a half of the TTL to pass', async () => (await redis.pttl(key)) < 28_500);
    visit.leave();
  }

  const [run] = await live.finished(1);
  expect(run.lock('Beat 1')).toMatchObject({ alive: true, key });
  expect(run.lock('Beat 2')).toMatchObject({ alive: true, key });
  expect(run.items('Beat 1', OUTPUT.lost)).toEqual([]);
  expect(run.lock('Release')).toMatchObject({ released: true, key });
});

test('after Redis lost its data, the first holder is told Lost and Not Held, and the fencing token still grows', async () => {
  const path = unique('restart');
  const key = unique('w4ingest:lock:folder');
  const first = await startRedis();
  let second: typeof first | undefined;
  try {
    const credential = await redisCredential(n8n, { host: first.host, port: first.port });
    const flow = new Flow(unique('Restart'), credential);
    flow.chain(
      flow.webhook(path),
      flow.lock('Acquire', { operation: 'acquire', key, ttl: 60 }),
      flow.visit('Section', `=${gate.url}/${key}?token={{ $json.lock.fencingToken }}`),
      flow.lock('Beat', { operation: 'heartbeat' }),
      flow.lock('Release', { operation: 'release' }),
    );
    flow.link('Beat', OUTPUT.lost, flow.noOp('Was Robbed'));
    flow.link('Was Robbed', 0, flow.lock('Release After All', { operation: 'release' }));
    const live = await goLive(n8n, flow);

    await live.call(path);
    const one = await gate.next();
    await first.kill();
    second = await startRedis({ port: first.port });
    await live.call(path);
    const two = await gate.next();
    one.leave();
    await live.ended(1);
    two.leave();

    const [robbed, winner] = await live.finished(2);
    expect(Number(two.says.token)).toBeGreaterThan(Number(one.says.token));
    expect(robbed.items('Beat', OUTPUT.alive)).toEqual([]);
    expect(robbed.lock('Beat', OUTPUT.lost)).toMatchObject({ alive: false, key, holder: { executionId: winner.id } });
    expect(robbed.items('Release After All', OUTPUT.released)).toEqual([]);
    expect(robbed.lock('Release After All', OUTPUT.notHeld)).toMatchObject({
      released: false,
      overlapped: true,
      key,
      holder: { executionId: winner.id },
    });
    expect(winner.lock('Beat')).toMatchObject({ alive: true, key });
    expect(winner.lock('Release')).toMatchObject({ released: true, key });
  } finally {
    await first.stop();
    await second?.stop();
  }
});
