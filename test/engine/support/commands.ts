import type Redis from 'ioredis';

const IGNORED = new Set(['info', 'config|resetstat', 'config', 'client', 'client|setname', 'ping']);

/** Which commands Redis got during `work`, those inside scripts included, by name. */
export async function commandsDuring(redis: Redis, work: () => Promise<unknown>): Promise<Record<string, number>> {
  await redis.config('RESETSTAT');
  await work();
  const stats = await redis.info('commandstats');
  const found = [...stats.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm)].map(([, name, calls]) => [String(name), Number(calls)] as const);
  return Object.fromEntries(found.filter(([name]) => !IGNORED.has(name)));
}
