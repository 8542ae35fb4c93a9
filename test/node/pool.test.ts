import Redis from 'ioredis';
import { Pool } from '../../nodes/RedisLock/connection';
import { startRedis, type RedisServer } from '../../scripts/lib/redis';
import { until } from '../engine/support/until';

describe('the pool of connections', () => {
  let server: RedisServer;
  let operator: Redis;

  beforeAll(async () => {
    server = await startRedis();
    operator = new Redis(server.url);
  });

  afterAll(async () => {
    await operator.quit();
    await server.stop();
  });

  const connections = async () => String(await operator.client('LIST')).match(/name=n8n-nodes-redis-lock/g)?.length ?? 0;
  const credential = (database: number) => ({ host: server.host, port: server.port, user: '', password: '', database });

  it('has one connection per credential, however many use it at once', async () => {
    const pool = new Pool(50);
    let seen = 0;
    await Promise.all(
      [0, 0, 0, 1].map((database) =>
        pool.use(credential(database), async ({ locks, server: name }) => {
          expect(name).toBe(`${server.host}:${server.port}/${database}`);
          await locks.status('pool');
          seen = Math.max(seen, await connections());
        }),
      ),
    );
    expect(seen).toBe(2);
    await until(async () => (await connections()) === 0);
  });

  it('keeps the connection for the next run, closes it when nobody uses it, and opens another', async () => {
    const pool = new Pool(200);
    await pool.use(credential(0), async ({ locks }) => await locks.status('pool'));
    await pool.use(credential(0), async ({ locks }) => {
      await locks.status('pool');
      expect(await connections()).toBe(1);
    });
    await until(async () => (await connections()) === 0);

    await pool.use(credential(0), async ({ locks }) => {
      expect((await locks.status('pool')).state).toBe('free');
    });
    await until(async () => (await connections()) === 0);
  });

  it('does not close it while somebody waits', async () => {
    const pool = new Pool(20);
    const holder = await pool.use(credential(0), async ({ locks }) => await locks.acquire('waited-for', { ttlMs: 60_000 }));
    if (holder.outcome !== 'acquired') throw new Error(holder.outcome);
    const waiting = pool.use(credential(0), async ({ locks }) => await locks.acquire('waited-for', { ttlMs: 60_000, waitMs: 30_000 }));
    await until(async () => (await operator.zcard('{waited-for}:rl:line')) === 1);
    await pool.use(credential(0), async ({ locks }) => await locks.resume('waited-for', holder.lock).release());
    const next = await waiting;
    expect(next.outcome).toBe('acquired');
    await pool.use(credential(0), async ({ locks }) => {
      if (next.outcome === 'acquired') await locks.resume('waited-for', next.lock).release();
    });
    await until(async () => (await connections()) === 0);
  });
});
