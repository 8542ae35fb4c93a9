import Redis, { type RedisOptions } from 'ioredis';
import { createLocks, type AcquireOptions, type Lock, type Locks, type LocksOptions, type Source } from '../../../engine';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';

/**
 * A real Redis for one test file, a plain client on it (`redis`: the operator, the chain, the eyes of the test), and
 * engines that are closed after each test. At the end no key may be left without a TTL, and nothing may have been
 * rejected unheard.
 */
export class Bed {
  server!: RedisServer;
  redis!: Redis;
  /** Keys that the test itself made without a TTL. */
  readonly own = new Set<string>();
  private readonly clients: Redis[] = [];
  private readonly open = new Set<Locks>();
  private readonly unheard: unknown[] = [];
  private readonly listen = (reason: unknown) => void this.unheard.push(reason);

  constructor(private readonly serverArgs: string[] = []) {}

  async start(): Promise<void> {
    process.on('unhandledRejection', this.listen);
    this.server = await startRedis({ args: this.serverArgs });
    this.redis = this.client();
  }

  /** A plain client, which is disconnected at the end. */
  client(options: RedisOptions = {}): Redis {
    const client = new Redis(this.server.url, options);
    client.on('error', () => {});
    this.clients.push(client);
    return client;
  }

  /** An engine, as a process of its own would have it. */
  locks(options: LocksOptions = {}, source: Source = { url: this.server.url }): Locks {
    const locks = createLocks(source, options);
    this.open.add(locks);
    return locks;
  }

  async closeLocks(): Promise<void> {
    await Promise.all([...this.open].map((locks) => locks.close()));
    this.open.clear();
  }

  async keysWithoutTtl(): Promise<string[]> {
    const keys = await this.redis.keys('*');
    const ttls = await Promise.all(keys.map((key) => this.redis.pttl(key)));
    return keys.filter((key, i) => ttls[i] === -1 && !this.own.has(key));
  }

  async end(): Promise<void> {
    await this.closeLocks();
    const forgotten = await this.keysWithoutTtl();
    for (const client of this.clients) client.disconnect();
    await this.server.stop();
    process.off('unhandledRejection', this.listen);
    expect(forgotten).toEqual([]);
    expect(this.unheard).toEqual([]);
  }
}

/** The bed of a test file. */
export function useBed(serverArgs?: string[]): Bed {
  const bed = new Bed(serverArgs);
  beforeAll(() => bed.start());
  afterEach(() => bed.closeLocks());
  afterAll(() => bed.end());
  return bed;
}

/** Acquires, where the test knows that it must succeed. */
export async function take(locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Lock> {
  const result = await locks.acquire(key, { ttlMs: 30_000, ...options });
  if (result.outcome !== 'acquired') throw new Error(`not acquired: ${JSON.stringify(result)}`);
  return result.lock;
}

let names = 0;
/** A key that no other test uses. */
export const newKey = (about = 'key') => `w4:${about}:${++names}`;
