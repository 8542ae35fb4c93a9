import { now, sleep } from '../lib/clock.mjs';
import { startWorker } from '../lib/fleet.mjs';
import { max, median } from '../lib/stats.mjs';

export const title = '1,000 time-outs at once, on 100 keys that are released in the same moment';
export const variants = ({ quick }) => [{ keys: quick ? 20 : 100, waitersPerKey: 10 }];
export const applies = (adapter) => adapter.traits.waits !== false && !adapter.traits.slowPath;

const WAIT_MS = 2000;
const TTL = 120000;

/**
 * The holders release from 5 ms before to 15 ms after the waiters' deadline. Whoever was told "acquired" gives it back;
 * a key that is not free when all have returned was given to a waiter who was told that its time was over.
 */
export async function run({ adapter, server, variant }) {
  const keys = Array.from({ length: variant.keys }, (_, i) => `timeout:${i}`);
  const holder = await startWorker(adapter.module, server.url);
  const crowd = await startWorker(adapter.module, server.url);
  try {
    await Promise.all(keys.map((key) => holder.call('holdGate', { key, ttl: TTL })));
    const start = now() + 50;
    const arrivals = keys.flatMap((key) =>
      Array.from({ length: variant.waitersPerKey }, (_, i) => ({ id: `${key}:${i}`, at: start, key })),
    );
    const [{ passes, failures }] = await Promise.all([
      crowd.call('contend', { ttl: TTL, waitMs: WAIT_MS, arrivals }),
      ...keys.map((key, i) => holder.call('releaseGateAt', { key, at: start + WAIT_MS - 5 + (20 * i) / keys.length })),
    ]);
    await sleep(200);
    const late = failures.filter((f) => f.error === 'timeout').map((f) => f.late);
    return {
      'timed out': late.length,
      served: passes.length,
      'lateness median ms': median(late),
      'lateness max ms': max(late),
      'held by nobody': keys.length - (await holder.call('countFree', { keys, ttl: TTL })),
      notes: [...new Set(failures.map((f) => f.error))].filter((e) => e !== 'timeout').join('; '),
    };
  } finally {
    await Promise.all([holder, crowd].map((worker) => worker.kill()));
  }
}
