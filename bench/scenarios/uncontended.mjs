import { startWorker } from '../lib/fleet.mjs';

export const title = 'Uncontended acquire + release';
export const variants = () => [{}];
export const applies = () => true;

export async function run({ adapter, server, scale }) {
  const slow = adapter.traits.slowPath;
  const worker = await startWorker(adapter.module, server.url);
  try {
    const sequential = await worker.call('sequential', {
      count: (slow ? 300 : 5000) * scale,
      warmup: slow ? 20 : 500,
      ttl: 30000,
    });
    const parallel = await worker.call('parallel', { count: (slow ? 600 : 20000) * scale, tasks: 64, ttl: 30000 });
    return {
      'seq median ms': sequential.median,
      'seq p99 ms': sequential.p99,
      'seq pairs/s': sequential.perSecond,
      '64 tasks median ms': parallel.median,
      '64 tasks p99 ms': parallel.p99,
      '64 tasks pairs/s': parallel.perSecond,
    };
  } finally {
    await worker.stop();
  }
}
