import Redis from 'ioredis';
import redisOf from '../../scripts/lib/redis.js';

/** Starts a throw-away Redis: loopback only, no persistence, ended with this process. */
export async function startServer() {
  const server = await redisOf.startRedis({ args: ['--loglevel', 'warning', '--maxclients', '20000'] });
  const { url } = server;
  const control = new Redis(url, { retryStrategy: (n) => (n > 100 ? null : 50), maxRetriesPerRequest: null });
  control.on('error', () => {});
  const info = await control.info('server');
  return {
    url,
    control,
    version: /redis_version:(\S+)/.exec(info)?.[1],
    async stop() {
      control.disconnect();
      await server.stop();
    },
  };
}

const IGNORED = new Set([
  'info',
  'config|resetstat',
  'config',
  'client|setinfo',
  'client|setname',
  'client',
  'flushall',
  'hello',
  'select',
  'command',
  'auth',
  'script|load',
  'subscribe',
  'unsubscribe',
]);

/** Counters since the last reset: every command executed, those in scripts included. */
export async function counters(control) {
  const text = await control.info('all');
  const calls = {};
  for (const [, name, n] of text.matchAll(/^cmdstat_([^:]+):calls=(\d+)/gm))
    if (!IGNORED.has(name)) calls[name] = Number(n);
  const number = (field) => Number(new RegExp(`^${field}:(\\S+)`, 'm').exec(text)?.[1] ?? 0);
  return {
    calls,
    total: Object.values(calls).reduce((a, b) => a + b, 0),
    scripts: (calls.evalsha ?? 0) + (calls.eval ?? 0) + (calls.fcall ?? 0),
    cpuMs: (number('used_cpu_user') + number('used_cpu_sys')) * 1000,
    memory: number('used_memory'),
    clients: number('connected_clients'),
    connections: number('total_connections_received'),
  };
}

export async function reset(control) {
  await control.flushall();
  await control.config('RESETSTAT');
}
