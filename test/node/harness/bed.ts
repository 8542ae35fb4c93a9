import { Redis } from 'ioredis';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';
import { startEngine, type Engine, type EngineVersion, type RedisCredential } from './engine';

const INSTALL_MS = 600_000;
const TEST_MS = 30_000;

/** What every test file stands on: one Redis, one engine, and keys that no other test uses. */
export interface Bed {
  readonly engine: Engine;
  readonly server: RedisServer;
  readonly credential: RedisCredential;
  /** A client of the test itself. */
  readonly redis: Redis;
  /** A lock key of its own for each call. */
  key(name?: string): string;
  /** Another n8n process on the same Redis, as a second worker would be. */
  secondEngine(): Promise<Engine>;
}

/** Registers start and stop of a bed in the `describe` block that it is called in. */
export function useBed(version: EngineVersion): Bed {
  jest.setTimeout(TEST_MS);

  let server: RedisServer;
  let redis: Redis;
  const engines: Engine[] = [];
  let keys = 0;

  const credential = () => ({ host: server.host, port: server.port });

  beforeAll(async () => {
    server = await startRedis();
    redis = new Redis(server.port, server.host);
    engines.push(await startEngine(version, credential()));
  }, INSTALL_MS);

  afterAll(async () => {
    const stops = await Promise.allSettled(engines.map(async (engine) => await engine.stop()));
    redis?.disconnect();
    await server?.stop();
    for (const stop of stops) if (stop.status === 'rejected') throw stop.reason;
  });

  return {
    get engine() {
      return engines[0];
    },
    get server() {
      return server;
    },
    get credential() {
      return credential();
    },
    get redis() {
      return redis;
    },
    key: (name = 'job') => `test:lock:${name}-${++keys}`,
    async secondEngine() {
      engines.push(await startEngine(version, credential()));
      return engines.at(-1)!;
    },
  };
}
