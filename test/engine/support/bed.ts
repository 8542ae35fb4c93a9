import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Redis, { type RedisOptions } from 'ioredis';
import { createLocks, type AcquireOptions, type Lock, type Locks, type LocksOptions, type Source } from '../../../engine';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';
import { Proxy } from './proxy';

/** The Redis of REDIS_URL: for tests alone, for it is emptied; and for one test file at a time. */
function foreign(url: string): RedisServer {
  const { hostname, port } = new URL(url);
  const stop = () => Promise.resolve();
  const kill = () => Promise.reject(new Error('This Redis was not started here.'));
  return { url, host: hostname, port: Number(port || 6379), pid: 0, dir: '', stop, kill };
}

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
  private readonly dir = mkdtempSync(join(tmpdir(), 'redis-lock-bed-'));
  private readonly listen = (reason: unknown) => void this.unheard.push(reason);

  constructor(private readonly serverArgs: string[] = []) {}

  async start(): Promise<void> {
    process.on('unhandledRejection', this.listen);
    const given = process.env.REDIS_URL;
    // Who needs settings of its own, or ends its server, starts one in any case.
    if (given && this.serverArgs.length === 0) this.server = foreign(given);
    else this.server = await startRedis({ args: this.serverArgs, dir: this.dir });
    this.redis = this.client();
    if (given) await this.redis.flushall();
  }

  /** Starts the Redis that was killed (`server.kill()`) again, at the same address and with what it kept on disk. */
  async comeBack(): Promise<void> {
    this.server = await startRedis({ args: this.serverArgs, dir: this.dir, port: this.server.port });
  }

  /** A plain client, which is disconnected at the end. */
  client(options: RedisOptions = {}): Redis {
    return this.clientOf(this.server.url, options);
  }

  /** The same, of another address: a proxy, a replica. */
  clientOf(url: string, options: RedisOptions = {}): Redis {
    const client = new Redis(url, options);
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
    rmSync(this.dir, { recursive: true, force: true });
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

/** A proxy before the Redis of that bed, which behaves again after each test. */
export function useProxy(bed: Bed): Proxy {
  const proxy = new Proxy();
  beforeAll(() => proxy.listen(bed.server));
  afterEach(() => {
    proxy.judge = () => 'pass';
    proxy.refusing = false;
    proxy.target = bed.server;
  });
  afterAll(() => proxy.stop());
  return proxy;
}

type Acquired = Awaited<ReturnType<Locks['acquire']>>;

/** The lock of an acquire, where the test knows that it must succeed. */
export async function won(result: Acquired | Promise<Acquired>): Promise<Lock> {
  const settled = await result;
  if (settled.outcome !== 'acquired') throw new Error(`not acquired: ${JSON.stringify(settled)}`);
  return settled.lock;
}

/** Acquires, where the test knows that it must succeed. */
export const take = (locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Lock> =>
  won(locks.acquire(key, { ttlMs: 30_000, ...options }));

/** Waits in line; that it is rejected when the test closes its locks is nobody's concern. */
export function wait(locks: Locks, key: string, options: Partial<AcquireOptions> = {}): Promise<Acquired> {
  const result = locks.acquire(key, { ttlMs: 30_000, waitMs: 20_000, ...options });
  result.catch(() => {});
  return result;
}

let names = 0;
/** A key that no other test uses. */
export const newKey = (about = 'key') => `w4:${about}:${++names}`;
