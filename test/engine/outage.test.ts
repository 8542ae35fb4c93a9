import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Redis from 'ioredis';
import { createLocks, type Locks } from '../../engine';
import { startRedis, type RedisServer } from '../../scripts/lib/redis';
import { take } from './support/bed';
import { until } from './support/until';

/** Waiters that outlive a restart of Redis. */
describe.each([
  ['keeps its data', ['--appendonly', 'yes', '--appendfsync', 'always']],
  ['loses its data', []],
])('a Redis that restarts while some wait, and %s', (about, args) => {
  let server: RedisServer;
  let dir: string;
  let engines: Locks[];

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'redis-lock-outage-'));
    server = await startRedis({ dir, args });
    engines = [1, 2, 3].map(() => createLocks({ url: server.url }, { commandTimeoutMs: 3000 }));
  });
  afterAll(async () => {
    await Promise.all(engines.map((locks) => locks.close()));
    await server.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  it('F17: serves them all, those of one process in their order', async () => {
    const [holderOf, a, b] = engines as [Locks, Locks, Locks];
    const holder = await take(holderOf, 'k', { ttlMs: 60_000 });
    const order: string[] = [];
    const waits: Array<Promise<void>> = [];
    for (const [name, locks] of [['a1', a], ['b1', b], ['a2', a], ['b2', b], ['a3', a]] as const) {
      waits.push(
        locks.acquire('k', { ttlMs: 30_000, waitMs: 30_000 }).then(async (result) => {
          if (result.outcome !== 'acquired') throw new Error(result.outcome);
          order.push(name);
          await result.lock.release();
        }),
      );
      await until(async () => (await holderOf.status('k')).queue === waits.length);
    }

    const { port } = server;
    await server.kill();
    server = await startRedis({ port, dir, args });
    const eyes = new Redis(server.url);
    if (about === 'keeps its data') {
      await until(async () => (await eyes.pubsub('CHANNELS', 'rl:wake:*') as string[]).length === 2);
      expect((await holder.heartbeat()).outcome).toBe('alive');
      expect((await holder.release()).outcome).toBe('released');
    } else {
      expect((await holder.heartbeat()).outcome).toBe('lost');
    }
    eyes.disconnect();
    await Promise.all(waits);

    if (about === 'keeps its data') expect(order).toEqual(['a1', 'b1', 'a2', 'b2', 'a3']);
    else expect(order.filter((name) => name.startsWith('a'))).toEqual(['a1', 'a2', 'a3']);
    expect(order).toHaveLength(5);
  }, 30_000);
});
