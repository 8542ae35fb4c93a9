import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { useBed } from '../engine/support/bed';
import { commandsDuring } from '../engine/support/commands';
import { until } from '../engine/support/until';
import { compileEngine } from './support/compiled';

const TTL_MS = 600_000;

/** What those cost who only wait, and what they leave behind. */
describe('a process with many parked waiters', () => {
  const bed = useBed();
  const { engine, env, folder } = compileEngine();
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** Starts it, parks `waiters` on `keys` that are held, and ends it in order when `meanwhile` is done. */
  async function park(waiters: number, keys: number, meanwhile: () => Promise<void>): Promise<{ bytes: number; left: Record<string, unknown> }> {
    await bed.redis.flushall();
    const holder = bed.locks({ fencingRetentionMs: 1000 });
    const held = [];
    for (let i = 0; i < keys; i++) {
      const result = await holder.acquire(`parked:${i}`, { ttlMs: TTL_MS });
      if (result.outcome === 'acquired') held.push(result.lock);
    }
    const order = JSON.stringify({ engine, url: bed.server.url, waiters, keys });
    const child = spawn(process.execPath, ['--expose-gc', join(__dirname, 'support/parked.js'), order], { stdio: ['pipe', 'pipe', 'inherit'], env });
    const ended = once(child, 'exit');
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const next = async () => JSON.parse(String((await lines.next()).value)) as Record<string, unknown>;
    try {
      const { bytes, waiting } = await next();
      expect(waiting).toBe(waiters);
      await meanwhile();
      expect(await bed.keysWithoutTtl()).toEqual([]);
      expect((await bed.redis.pubsub('CHANNELS', '*')) as string[]).toHaveLength(1);
      child.stdin.end();
      const left = await next();
      // By itself: nothing tells it to.
      const slow = delay(5000, 'still running', { ref: false });
      expect(await Promise.race([ended, slow])).toEqual([0, null]);
      await Promise.all(held.map((lock) => lock.release()));
      // The fencing tokens alone, for as long as the lease would have been and a second of retention.
      await until(async () => (await bed.redis.keys('*')).every((key) => key.endsWith(':rl:lock')));
      for (const key of await bed.redis.keys('*')) expect(await bed.redis.pttl(key)).toBeLessThanOrEqual(TTL_MS + 1000);
      expect(await bed.redis.pubsub('CHANNELS', '*')).toEqual([]);
      return { bytes: Number(bytes), left };
    } finally {
      child.kill('SIGKILL');
    }
  }

  const clean = (ended: number) => ({ ended, waiting: 0, listeners: 'as before', onSignals: 0, resources: [] });

  it('F59: needs less than 4 KiB for each, and leaves no listener, timer, key or subscription', async () => {
    const { bytes, left } = await park(5000, 1, async () => {});
    process.stdout.write(`parked: ${Math.round(bytes)} bytes of heap for each of 5000 waiters\n`);
    expect(bytes).toBeLessThan(4096);
    expect(left).toEqual(clean(5000));
  }, 60_000);

  it('F16: sends hardly a command while they wait for one key, and at most one for each of many keys in 5 s', async () => {
    const seconds = 8;
    const perSecond: Record<number, number> = {};
    for (const keys of [1, 100]) {
      await park(1000, keys, async () => {
        // What follows from joining the line is over.
        await delay(500);
        const counts = await commandsDuring(bed.redis, () => delay(seconds * 1000));
        perSecond[keys] = Object.values(counts).reduce((sum, count) => sum + count, 0) / seconds;
        expect(counts.evalsha ?? 0).toBeLessThanOrEqual(keys * Math.ceil(seconds / 5));
      });
    }
    process.stdout.write(`parked: commands per second of 1000 waiters, those inside scripts included: ${JSON.stringify(perSecond)} by keys\n`);
    expect(perSecond[1]).toBeLessThanOrEqual(5);
  }, 90_000);
});
