import Redis, { type Cluster, type RedisOptions } from 'ioredis';
import { Attempts, type Call, type Ways } from './attempts';
import { Deadlines } from './deadlines';
import { RedisLockError, explain, isFatal, unavailable } from './errors';

export type Client = Redis | Cluster;

/** Where the locks live: an address, ioredis options, or a client of the caller's, which is never closed here. */
export type Source = { url: string } | { options: RedisOptions } | { redis: Client };

/** @returns the first client, how to make further ones (undefined for a client of the caller's), and a subscriber */
export function clientFrom(source: Source, limitMs: number): { client: Client; make?: () => Redis; makeSubscriber: () => Client } {
  if ('redis' in source) {
    const { redis } = source;
    // Its own connection, since a subscribed one takes no other commands.
    const makeSubscriber = () =>
      redis.isCluster ? (redis as Cluster).duplicate() : (redis as Redis).duplicate({ lazyConnect: true, ...SUBSCRIBER });
    return { client: redis, makeSubscriber };
  }
  const make = (extra?: RedisOptions) =>
    'url' in source ? new Redis(source.url, clientOptions(extra, limitMs)) : new Redis(clientOptions({ ...source.options, ...extra }, limitMs));
  return { client: make(), make: () => make(), makeSubscriber: () => make(SUBSCRIBER) };
}

/** A subscriber subscribes by itself after every reconnect, to know when it listens. */
const SUBSCRIBER: RedisOptions = { autoResubscribe: false, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: null };

/** How our own clients are made. */
function clientOptions(options: RedisOptions | undefined, connectTimeoutMs: number): RedisOptions {
  return {
    connectTimeout: connectTimeoutMs,
    // Scripts may be repeated, so a command in flight when the connection drops is sent again. Our own time limit
    // ends the wait for it; a limit on retries would fail it early.
    autoResendUnfulfilledCommands: true,
    maxRetriesPerRequest: null,
    // No INFO at connect: it needs a permission of its own, and LOADING is handled where it is answered.
    enableReadyCheck: false,
    retryStrategy: (attempt) => Math.min(50 * 2 ** Math.min(attempt, 5), 1000) + Math.random() * 50,
    protocol: 2,
    disableClientInfo: true,
    connectionName: 'n8n-nodes-redis-lock',
    ...options,
    lazyConnect: true,
  };
}

/**
 * One ioredis client with bounded failure: every call ends within its limit with an answer or a clear error,
 * whatever the connection does. A client that we were handed is never closed or reset here.
 */
export class Connection {
  private lastError: unknown;
  private current: Client;
  private closed = false;
  private readonly parked = new Set<Attempts<unknown, unknown>>();
  private readonly deadlines = new Deadlines();
  private readonly ways: Ways = {
    deadlines: this.deadlines,
    parked: this.parked,
    ready: () => (this.current.status === 'ready' && !this.closed ? this.current : undefined),
    connect: () => this.connect(),
    reset: () => this.reset(),
    explain: (error) => explain(error, this.server),
    timeout: (sent, last) => this.timeout(this.limitMs, sent ? last : this.lastError),
  };

  constructor(
    client: Client,
    private readonly make: (() => Redis) | undefined,
    readonly limitMs: number,
    /** Called at every new connection: another Redis may be answering. */
    private readonly onReady: () => void,
  ) {
    this.current = this.adopt(client);
  }

  /** host:port, for messages. */
  get server(): string {
    const client = this.current;
    if (client.isCluster) return 'the cluster';
    const { host, port, path } = (client as Redis).options;
    return path ?? `${host ?? 'localhost'}:${port ?? 6379}`;
  }

  get client(): Client {
    return this.current;
  }

  /**
   * Runs a call on a connected client.
   * @throws RedisLockError
   */
  run<A, T = A>(call: Call<A, T>): Promise<T> {
    return new Promise<T>((resolve, reject) => new Attempts(this.ways, call, this.limitMs, resolve, reject).next());
  }

  /** The error of a call whose time is over. */
  timeout(limitMs = this.limitMs, last?: unknown): RedisLockError {
    return unavailable(this.server, limitMs, last);
  }

  /** Closes a client of our own; waits for what was sent, but not for long. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    const client = this.current;
    if (!this.make) this.forget(client);
    this.retryParked();
    if (this.deadlines.size === 0) this.deadlines.clear();
    if (!this.make) return;
    if (client.status === 'ready') {
      const timer = setTimeout(() => client.disconnect(), 1000);
      timer.unref();
      await client.quit().catch(() => {});
      clearTimeout(timer);
    } else {
      client.disconnect();
    }
  }

  private readonly onError = (error: unknown) => {
    this.lastError = error;
    if (!isFatal(error)) return;
    // Refused is refused: no further attempts in the background, and the next call starts afresh.
    this.replace();
    for (const call of [...this.parked]) call.fail(error);
  };

  private readonly onConnect = () => {
    this.lastError = undefined;
    if (this.make) stayInBackground(this.current);
    this.onReady();
    this.retryParked();
  };

  private readonly onReconnecting = () => {
    if (this.make) stayInBackground(this.current);
  };

  private readonly retryParked = () => {
    const calls = [...this.parked];
    this.parked.clear();
    for (const call of calls) call.next();
  };

  private adopt(client: Client): Client {
    // Without a listener ioredis prints every error, and an 'error' event could end the process.
    client.on('error', this.onError);
    client.on('ready', this.onConnect).on('reconnecting', this.onReconnecting).on('end', this.retryParked);
    return client;
  }

  private forget(client: Client): void {
    client.off('error', this.onError);
    client.off('ready', this.onConnect).off('reconnecting', this.onReconnecting).off('end', this.retryParked);
  }

  /** A fresh client instead of this one, which is ended. (Ending one that reconnects leaves it dead.) */
  private replace(): void {
    if (!this.make || this.closed) return;
    const old = this.current;
    this.current = this.adopt(this.make());
    this.forget(old);
    old.on('error', () => {});
    old.disconnect();
  }

  /** Drops the socket. What was in flight is sent again on the next one: every script may be repeated. */
  private reset(): void {
    if (this.make && this.current.status === 'ready') this.current.disconnect(true);
  }

  private connect(): RedisLockError | undefined {
    if (this.closed) return new RedisLockError('closed', 'These locks were closed.', 'Create them anew.');
    if (this.current.status === 'end') {
      if (!this.make) {
        return new RedisLockError('closed', `The Redis client for ${this.server} is closed.`, 'Connect it, or create another.');
      }
      this.replace();
    }
    if (this.current.status === 'wait') this.current.connect().catch(() => {});
    return undefined;
  }
}

/**
 * An idle lock must not keep a program alive: neither its socket nor, while Redis is away, the timer of the next attempt
 * (which ioredis keeps to itself). The timer in `Connection.run` does, while an answer is awaited.
 */
export function stayInBackground(client: Client): void {
  const { stream, reconnectTimeout } = client as unknown as { stream?: { unref?: () => void }; reconnectTimeout?: { unref?: () => void } | null };
  stream?.unref?.();
  reconnectTimeout?.unref?.();
}
