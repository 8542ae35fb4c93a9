import { now, sleep } from '../lib/clock.mjs';
import { startWorker } from '../lib/fleet.mjs';
import { counters } from '../lib/server.mjs';
import { max, median } from '../lib/stats.mjs';

export const title = '1,000 waiters parked on one key for 10 s';
export const variants = ({ quick }) => [{ waiters: quick ? 200 : 1000, seconds: quick ? 3 : 10 }];
export const applies = (adapter) => adapter.traits.waits !== false;

export async function run({ adapter, server, variant: { waiters, seconds } }) {
  const holder = await startWorker(adapter.module, server.url);
  const crowd = await startWorker(adapter.module, server.url);
  try {
    await holder.call('holdGate', { key: 'parked', ttl: 120000 });
    const idle = await crowd.call('usage');
    const idleRedis = await counters(server.control);
    const start = now() + 50;
    const settleMs = 1500;
    const waiting = crowd.call('contend', {
      key: 'parked',
      ttl: 120000,
      waitMs: settleMs + seconds * 1000 + 1500,
      csMs: 0,
      file: '',
      arrivals: Array.from({ length: waiters }, (_, id) => ({ id, at: start })),
    });
    await sleep(settleMs);
    const [u0, r0, t0] = [await crowd.call('usage'), await counters(server.control), now()];
    await sleep(seconds * 1000);
    const [u1, r1, t1] = [await crowd.call('usage'), await counters(server.control), now()];
    const span = (t1 - t0) / 1000;
    const { failures } = await Promise.race([
      waiting,
      sleep(10000).then(() => ({ failures: [{ error: 'did not time out' }] })),
    ]);
    const late = failures.filter((f) => f.error === 'timeout').map((f) => f.late);
    return {
      'redis commands/s': (r1.total - r0.total) / span,
      'redis cpu %': (r1.cpuMs - r0.cpuMs) / span / 10,
      'redis connections/s': (r1.connections - r0.connections) / span,
      'redis clients': r1.clients,
      'redis memory KiB': (r1.memory - idleRedis.memory) / 1024,
      'process cpu %': (u1.cpuMs - u0.cpuMs) / span / 10,
      'heap KiB/waiter': (u1.heap - idle.heap) / 1024 / waiters,
      'rss MiB': u1.rss / 1048576,
      'timeout lateness median ms': median(late),
      'timeout lateness max ms': max(late),
      notes: [...new Set(failures.map((f) => f.error))].filter((e) => e !== 'timeout').join('; '),
    };
  } finally {
    await Promise.all([holder, crowd].map((worker) => worker.kill()));
  }
}
