import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import Redis, { type RedisOptions } from 'ioredis';
import { createLocks, type AcquireOptions, type Lock, type Locks, type LocksOptions, type Source } from '../../../engine';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';
import { livingChildren, stopChildren } from './child';
import { Proxy } from './proxy';
import { until } from './until';

/** How the engine's connections call themselves. */
const OUR_NAME = 'n8n-nodes-redis-lock';

/** The Redis of REDIS_URL: for tests alone, for it is emptied; and for one test file at a time. */
function foreign(url: string): RedisServer {
  const { hostname, port } = new URL(url);
  const stop = () => Promise.resolve();
  const kill = () => Promise.reject(new Error('This Redis was not started here.'));
  return { url, host: hostname, port: Number(port || 6379), pid: 0, dir: '', stop, kill };
}

/**
 * A real Redis for one test file, a plain client on it (`redis`: the operator, the chain, the eyes of the test), and
 * engines that are closed after each test. What holds after every test is checked here, see `check`.
 */
export class Bed {
  server!: RedisServer;
  redis!: Redis;
  /** Keys that the test itself made without a TTL. */
  readonly own = new Set<string>();
  private readonly clients: Redis[] = [];
  private readonly open = new Set<Locks>();
  /** Engines of the test under way. */
  private engines = 0;
  /** Clients that were handed to an engine, with the listeners that they had before. */
  private readonly lent = new Map<Redis, string>();
  private timers = 0;
  private unheard: unknown[] = [];
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
    if ('redis' in source && !this.lent.has(source.redis as Redis)) this.lent.set(source.redis as Redis, listeners(source.redis as Redis));
    const locks = createLocks(source, options);
    this.open.add(locks);
    this.engines += 1;
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

  /** Before each test. */
  begin(): void {
    this.engines = this.open.size;
    this.timers = timers();
  }

  /**
   * After each test: no key is without a TTL, and each engine listened to one channel at most. When they are closed nothing of
   * them is left: no connection, no subscription, no timer that keeps the process alive, no listener on a client that they
   * were lent; and nothing was rejected unheard.
   */
  async check(): Promise<void> {
    const forgotten = await this.keysWithoutTtl();
    const engines = this.engines + livingChildren();
    // A connection that was cut is listed until Redis has noticed.
    const tooMany = await eventually(async () => {
      const subscribers = (await this.connected()).filter(({ subscriptions }) => subscriptions > 0);
      const several = subscribers.some(({ subscriptions }) => subscriptions > 1);
      return several || subscribers.length > engines ? subscribers : undefined;
    });
    await stopChildren();
    await this.closeLocks();
    const connected = await eventually(async () => {
      const ours = (await this.connected()).filter(({ name, subscriptions }) => name === OUR_NAME || subscriptions > 0);
      return ours.length > 0 ? ours : undefined;
    });
    const running = await eventually(() => (timers() > this.timers ? `${timers() - this.timers} timers` : undefined));
    const changed = [...this.lent].filter(([client, before]) => listeners(client) !== before).map(([client, before]) => [before, listeners(client)]);
    this.lent.clear();
    const { unheard } = this;
    this.unheard = [];
    expect({ forgotten, tooMany, connected, running, changed, unheard }).toEqual({
      forgotten: [], tooMany: undefined, connected: undefined, running: undefined, changed: [], unheard: [],
    });
  }

  async end(): Promise<void> {
    await this.closeLocks();
    for (const client of this.clients) client.disconnect();
    await this.server.stop();
    rmSync(this.dir, { recursive: true, force: true });
    process.off('unhandledRejection', this.listen);
  }

  private async connected(): Promise<Array<{ name: string; subscriptions: number }>> {
    const list = String(await this.redis.client('LIST'));
    return list.trim().split('\n').map((text) => {
      const field = (name: string) => new RegExp(` ${name}=(\\S*)`).exec(text)?.[1] ?? '';
      return { name: field('name'), subscriptions: Number(field('sub')) + Number(field('psub')) };
    });
  }
}

/** How many listeners of each kind a client has. */
const listeners = (client: Redis) =>
  JSON.stringify(client.eventNames().map((name) => [String(name), client.listenerCount(name)]).sort());

/** Timers that keep this process alive. */
const timers = () => process.getActiveResourcesInfo().filter((resource) => resource === 'Timeout').length;

/** Asks until there is no fault left, or gives the one that stays. */
async function eventually<T>(fault: () => T | undefined | Promise<T | undefined>): Promise<T | undefined> {
  let last: T | undefined;
  await until(async () => (last = await fault()) === undefined, 3000).catch(() => {});
  return last;
}

/** The bed of a test file. */
export function useBed(serverArgs?: string[]): Bed {
  const bed = new Bed(serverArgs);
  beforeAll(() => bed.start());
  beforeEach(() => bed.begin());
  afterEach(() => bed.check(), 15_000);
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
