/**
 * Child process that owns one adapter instance and carries out the orchestrator's requests.
 * Started by lib/fleet.mjs with: adapter module, Redis address.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { now, sleep, sleepUntil } from './clock.mjs';
import { quantile, median } from './stats.mjs';

const [adapterModule, redisUrl] = process.argv.slice(2);
const adapter = (await import(adapterModule)).default;
const locks = await adapter.create(redisUrl);
const rejections = [];
process.on('disconnect', () => process.exit(1));
process.on('unhandledRejection', (error) => rejections.push(String(error?.message ?? error)));
const gates = new Map();

/** Unlocked read-modify-write: loses updates as soon as two holders overlap. */
async function criticalSection(file, ms) {
  const seen = Number(readFileSync(file, 'utf8'));
  await sleep(ms);
  writeFileSync(file, String(seen + 1));
}

const requests = {
  async holdGate({ key, ttl }) {
    const handle = await locks.acquire(key, ttl, 5000);
    gates.set(key, handle);
    return { held: handle !== null, at: now() };
  },

  async releaseGateAt({ key, at }) {
    await sleepUntil(at);
    const start = now();
    await locks.release(gates.get(key));
    return { start };
  },

  /** How many of these keys nobody holds. */
  async countFree({ keys, ttl }) {
    const handles = await Promise.all(keys.map((key) => locks.acquire(key, ttl, 0)));
    const held = handles.filter((handle) => handle !== null);
    await Promise.all(held.map((handle) => locks.release(handle)));
    return held.length;
  },

  /** Each arrival waits for the lock once, runs the critical section (where there is a file), and leaves. */
  async contend({ key: sameKey, ttl, waitMs, csMs, file, arrivals }) {
    const passes = [];
    const failures = [];
    await Promise.all(
      arrivals.map(async ({ id, at, key = sameKey }) => {
        await sleepUntil(at);
        const arrive = now();
        let handle = null;
        try {
          handle = await locks.acquire(key, ttl, waitMs);
        } catch (error) {
          failures.push({ id, error: String(error?.message ?? error).slice(0, 120) });
          return;
        }
        const enter = now();
        if (handle === null) {
          failures.push({ id, error: 'timeout', late: enter - arrive - waitMs });
          return;
        }
        if (file) await criticalSection(file, csMs);
        const leave = now();
        try {
          await locks.release(handle);
        } catch (error) {
          failures.push({ id, error: `release: ${String(error?.message ?? error).slice(0, 120)}` });
        }
        passes.push({ id, arrive, enter, leave, done: now() });
      }),
    );
    return { passes, failures, rejections };
  },

  /** One caller at a time, a fresh key each. */
  async sequential({ count, ttl, warmup }) {
    const samples = [];
    let started = 0;
    for (let i = -Math.floor(warmup); i < count; i += 1) {
      if (i === 0) started = now();
      const t = now();
      const handle = await locks.acquire(`seq:${i}`, ttl, 0);
      await locks.release(handle);
      if (i >= 0) samples.push(now() - t);
    }
    const elapsed = now() - started;
    return { median: median(samples), p99: quantile(samples, 0.99), perSecond: (count / elapsed) * 1000 };
  },

  async parallel({ count, tasks, ttl }) {
    const each = Math.ceil(count / tasks);
    const samples = [];
    const started = now();
    await Promise.all(
      Array.from({ length: tasks }, async (_, task) => {
        for (let i = 0; i < each; i += 1) {
          const t = now();
          const handle = await locks.acquire(`par:${task}`, ttl, 0);
          await locks.release(handle);
          samples.push(now() - t);
        }
      }),
    );
    const elapsed = now() - started;
    return { median: median(samples), p99: quantile(samples, 0.99), perSecond: ((each * tasks) / elapsed) * 1000 };
  },

  usage() {
    globalThis.gc?.();
    const memory = process.memoryUsage();
    const cpu = process.cpuUsage();
    return {
      rss: memory.rss,
      heap: memory.heapUsed,
      cpuMs: (cpu.user + cpu.system) / 1000,
      handles: process.getActiveResourcesInfo().length,
    };
  },

  async close() {
    await locks.close();
    return {};
  },
};

process.on('message', async ({ id, name, args }) => {
  try {
    process.send({ id, result: await requests[name](args) });
  } catch (error) {
    process.send({ id, error: String(error?.stack ?? error) });
  }
});
process.send({ id: 0, result: 'ready' });
