import assert from 'node:assert/strict';
import { setTimeout as delay } from 'node:timers/promises';
import Redis from 'ioredis';
import { createLocks, type AcquireOptions, type DoneMark, type Lock, type Locks, type Owner } from '../../../engine';
import type { Caller } from '../../../engine/calls';
import { Transitions } from '../../../engine/transitions';
import { ask as check, policy } from '../../../engine/validate';
import { executionKey } from '../../../engine/keys';
import { startRedis, type RedisServer } from '../../../scripts/lib/redis';
import { until } from '../../engine/support/until';
import { PROCESSES, inModel, inRedis } from './compare';
import { Eyes } from './eyes';
import { SHARED, isLive, type Answer, type Ask, type Channel, type Model } from './model';

/** An ioredis client that knows whether an answer is awaited, so that a test can wait for the end of what goes on by itself. */
class Watched extends Redis {
  sent = 0;
  open = 0;

  override sendCommand(...args: Parameters<Redis['sendCommand']>): unknown {
    this.sent += 1;
    this.open += 1;
    const answer = super.sendCommand(...args) as Promise<unknown>;
    const done = () => void (this.open -= 1);
    answer.then(done, done);
    return answer;
  }
}

/** What a look does to a waiter that it found something for, and the connection on which this process hears. */
interface Waiting {
  line: { find(full: string, lockId: string): { notify(): void } | undefined };
  wakeUp: { client: Redis };
}
const waitingOf = (locks: Locks) => (locks as unknown as { waiters: Waiting }).waiters;

const waiting = ({ newest, settles }: Pick<Ask, 'newest' | 'settles'>) => (newest ? { waiting: 'newest' as const, ...(settles && { settleMs: WAIT }) } : {});
const permits = (limit: number) => (limit === SHARED ? { mode: 'shared' as const } : { limit });

const LIVE = ['a', 'b', 'c'] as const;
export const TTL = 60_000;
export const RENEW = 1000;
const WAIT = 60_000;

/** A call that waits in line, and how it ended. */
export interface Parked {
  id: string;
  client: Locks;
  ask: Ask;
  arrival: number;
  result: Promise<Answer>;
  ended: boolean;
  abort: AbortController;
}

export interface Handle {
  lock: Lock;
  id: string;
  limit: number;
  hold: string[];
}

/**
 * Several processes on one real Redis (three of our own that listen, one that is frozen, one that is dead), driven step by
 * step along a model of them. After each step what Redis holds must be what the model holds.
 */
export class World {
  key = '';
  handles: Handle[] = [];
  parked: Parked[] = [];
  /** Those of whose end the model does not know. */
  private readonly awaited = new Map<string, Parked>();
  /** Who went and left its place to be kept. */
  kept: Ask[] = [];
  /** Waiters of the frozen and the dead process: ticket by id. */
  readonly ghosts = new Map<string, { channel: Channel; ask: Ask; ticket: number; arrival: number }>();
  /** Real tokens in the order of the grants: the model's token n is the n-th. */
  private tokens: number[] = [];
  private names = 0;
  private runs = 0;
  private readonly channels = new Map<Channel, string>();

  private constructor(
    private server: RedisServer,
    /** The operator, the hand-built chain. */
    readonly redis: Redis,
    readonly eyes: Eyes,
    private readonly clients: Record<string, { redis: Watched; locks: Locks }>,
    /** The frozen process listens, and does nothing. */
    private readonly frozen: Redis,
    private readonly ghost: Transitions,
  ) {}

  static async start(): Promise<World> {
    const server = await startRedis();
    const quick = { retryStrategy: () => 20 };
    const redis = new Redis(server.url, quick);
    const make = () => {
      const client = new Watched(server.url, quick);
      return { redis: client, locks: createLocks({ redis: client }, { fencingRetentionMs: 60_000 }) };
    };
    const options = { commandTimeoutMs: 5000, fencingRetentionMs: 60_000, maxWaiters: 10_000 };
    const ghost = new Transitions({ redis: new Redis(server.url, quick) }, options);
    const world = new World(server, redis, new Eyes(redis), { a: make(), b: make(), c: make() }, new Redis(server.url, quick), ghost);
    for (const client of [redis, world.frozen, ghost.calls.connection.client]) client.on('error', () => {});
    await world.frozen.subscribe('rl:wake:frozen');
    world.channels.set('frozen', 'rl:wake:frozen').set('dead', 'rl:wake:dead');
    for (const name of LIVE) await world.learnChannel(name);
    return world;
  }

  /** A new lock, with nobody there. */
  async begin(): Promise<void> {
    await this.redis.flushall();
    this.key = `lock:${++this.runs}`;
    this.handles = [];
    this.parked = [];
    this.awaited.clear();
    this.kept = [];
    this.ghosts.clear();
    this.tokens = [];
    this.names = 0;
  }

  /** Whoever still waits goes away. */
  async end(): Promise<void> {
    for (const { abort } of this.parked) abort.abort();
    await Promise.all(this.parked.map(({ result }) => result));
  }

  async stop(): Promise<void> {
    for (const { locks, redis } of Object.values(this.clients)) {
      await locks.close();
      redis.disconnect();
    }
    for (const client of [this.redis, this.frozen, this.ghost.calls.connection.client]) client.disconnect();
    await this.server.stop();
  }

  /** Redis ends and comes back with nothing; every connection comes back by itself, and whoever waits asks again. */
  async restart(): Promise<void> {
    const { port } = this.server;
    await this.server.kill();
    this.server = await startRedis({ port });
    const channels = [...this.channels.values()].filter((name) => name !== this.channelOf('dead'));
    await until(async () => {
      const counts = (await this.redis.pubsub('NUMSUB', ...channels)) as unknown[];
      return counts.filter((count) => Number(count) === 1).length === channels.length;
    });
    await until(() => Object.values(this.clients).every(({ redis }) => redis.status === 'ready'));
  }

  locks = (name: string) => this.clients[name]!.locks;
  newId = (channel: Channel) => `${channel}-${++this.names}`;
  place = () => ++this.names;
  token = (n: number) => this.tokens[n - 1] ?? 0;
  /** The number of a token; a token that was not seen before is the next, if it is larger than all before. */
  number = (token: number) => {
    if (token === 0) return 0;
    const known = this.tokens.indexOf(token);
    if (known >= 0) return known + 1;
    assert.ok(token > (this.tokens.at(-1) ?? 0), `fencing token ${token} is not larger than ${this.tokens.at(-1)}`);
    return this.tokens.push(token);
  };

  /** An id begins with the name of the process that made it; each process is one execution. */
  owner = (id: string): Owner => ({ instanceId: 'i', executionId: String(id.split('-')[0]) });

  options({ id, limit, ttl, holds: [hold] }: Ask): AcquireOptions {
    return { ttlMs: ttl, ...permits(limit), lockId: id, owner: this.owner(id), renewEveryMs: RENEW, ...(hold && { hold }) };
  }

  /** As a process that does not run, or not with our code, calls the scripts. */
  caller({ id, limit, ttl, holds: [hold], once, newest, settles }: Ask): Caller {
    const ask = check({ ttlMs: ttl, ...permits(limit), owner: this.owner(id), renewEveryMs: RENEW, ...(hold && { hold }) });
    const how = policy({ waitMs: WAIT, ...waiting({ newest, settles }) }, once);
    return { ...ask, ...(how.length > 0 && { policy: how }), keys: this.ghost.keys(this.key), lockId: id, index: executionKey(this.owner(id)) };
  }

  get scripts(): Transitions {
    return this.ghost;
  }

  channelOf = (channel: Channel) => this.channels.get(channel)!;

  keep(lock: Lock, { id, limit, holds }: Ask): void {
    this.handles.push({ lock, id, limit, hold: [...holds] });
  }

  /** Numbers the tokens of grants that were not seen yet, in their order: a step may have made several. */
  async learn(): Promise<void> {
    const { holders } = await this.eyes.see(this.key, []);
    for (const token of holders.map((m) => m.token).sort((a, b) => a - b)) this.number(token);
  }

  /** Takes it, as it is asked for; `more` says whether it waits. */
  acquire(ask: Ask, more: Partial<AcquireOptions>): ReturnType<Locks['acquireOnce']> {
    const locks = this.locks(ask.channel);
    const options = { ...this.options(ask), ...more, ...waiting(ask) };
    return ask.once ? locks.acquireOnce(this.key, options) : locks.acquire(this.key, options);
  }

  /** Why one has to go whom a newer one put out, or who wants nothing of what was done; else nothing. */
  out({ outcome, done, reason, newer }: { outcome: string; done?: DoneMark; reason?: string; newer?: Owner }): Answer | undefined {
    if (outcome === 'doneBefore' && done) return { outcome, token: this.number(done.fencingToken), by: String(done.owner.executionId), result: done.result };
    return reason === 'superseded' ? { outcome: reason, newer: String(newer?.executionId) } : undefined;
  }

  /** Joins the line and leaves the caller parked there, unless it is served at once. */
  park(ask: Ask, arrival: number): Parked {
    const client = this.locks(ask.channel);
    const abort = new AbortController();
    const parked: Parked = { id: ask.id, client, ask, arrival, ended: false, abort, result: Promise.resolve({ outcome: '' }) };
    parked.result = this.acquire(ask, { waitMs: WAIT, signal: abort.signal })
      .then((won) => {
        if (won.outcome !== 'acquired') return this.out(won) ?? { outcome: won.outcome };
        this.keep(won.lock, ask);
        return { outcome: 'acquired', realToken: won.lock.fencingToken };
      })
      .catch((error: Error) => ({ outcome: error.name === 'AbortError' ? 'aborted' : String(error) }))
      .finally(() => {
        parked.ended = true;
        this.parked = this.parked.filter((other) => other !== parked);
      });
    this.parked.push(parked);
    this.awaited.set(ask.id, parked);
    return parked;
  }

  /** How a wait ended that should be over by now. */
  async ended(parked: Parked): Promise<Answer> {
    this.awaited.delete(parked.id);
    const limit = new AbortController();
    const late = delay(1000, { outcome: 'still waiting' }, { signal: limit.signal });
    late.catch(() => {});
    const answer = await Promise.race([parked.result, late]);
    limit.abort();
    return answer;
  }

  /** Resolves when no process of ours awaits an answer. */
  async quiet(): Promise<void> {
    // Those who leave together are collected until the end of a turn.
    for (let turns = 0; turns < 3; turns++) {
      await new Promise((resolve) => setImmediate(resolve));
      if (Object.values(this.clients).some(({ redis }) => redis.open > 0)) turns = -1;
    }
  }

  /** Makes a waiter ask again, as a look that found something does, and waits until it has. */
  async nudge(parked: Parked): Promise<void> {
    const { redis } = this.clients[parked.ask.channel]!;
    const before = redis.sent;
    waitingOf(parked.client).line.find(this.key, parked.id)?.notify();
    await until(() => redis.sent > before, 2000, 0);
    await this.quiet();
  }

  /** Resolves when a process has heard all that was said to it. */
  private async heard(name: Channel): Promise<void> {
    const { client } = waitingOf(this.locks(name)).wakeUp;
    const heard = new Promise<void>((resolve) => {
      const hear = (_: string, text: string) => {
        if (text !== 'all') return;
        client.off('message', hear);
        resolve();
      };
      client.on('message', hear);
    });
    await this.redis.publish(this.channelOf(name), 'all');
    await heard;
  }

  /** Those who were told to leave the line have left, as far as they have to, and the others have asked again. */
  private async goOut(model: Model): Promise<void> {
    for (;;) {
      const meant = this.toldToLeave(model);
      if (meant.length === 0) return;
      // Where one leaves, the others are told once more.
      for (let round = 0; round < 2; round++) {
        for (const channel of new Set(meant.map(({ ask }) => ask.channel))) await this.heard(channel);
        await this.quiet();
      }
      const { results } = model.leave(meant.map(({ id }) => id), 'take', 'ifItMay');
      for (const [i, parked] of meant.entries()) {
        const left = results[i] as Answer | 0;
        const { outcome, ...expected } = left === 0 ? model.acquire(parked.ask, 'line', parked.arrival) : left;
        assert.equal(parked.ended, outcome !== 'waiting', `${parked.id}: ${outcome}`);
        if (!parked.ended) continue;
        const { realToken, ...real } = await this.ended(parked);
        assert.deepEqual({ ...real, ...(realToken !== undefined && { token: this.number(Number(realToken)) }) }, { outcome, ...expected });
      }
    }
  }

  /** One by one, or all of a process of whom it is possible; of these also those whose place was lost. */
  private toldToLeave(model: Model): Parked[] {
    const { ids, channels } = model.told;
    model.told = { ids: new Set(), channels: new Set() };
    return [...this.awaited.values()].filter(({ id, ask }) => {
      const waits = !model.member(id);
      return waits && (ids.has(id) || (channels.has(ask.channel) && (ask.once || ask.newest)));
    });
  }

  /** Lets everything that follows of itself happen: those who were handed the lock claim it. Then compares. */
  async settle(model: Model): Promise<void> {
    await this.quiet();
    for (const m of [...model.members].filter(({ given, channel }) => given && isLive(channel))) {
      const parked = this.awaited.get(m.id);
      if (parked) {
        assert.equal((await this.ended(parked)).outcome, 'acquired', `${m.id} was handed the lock`);
      }
      // The claim, which runs beside the entry.
      model.heartbeat(m.id, m.token, [], 0);
    }
    await this.goOut(model);
    await this.quiet();
    for (let attempt = 1; ; attempt++) {
      try {
        await this.compare(model);
        return;
      } catch (error) {
        if (attempt === 5) return Promise.reject(error);
        await delay(10);
      }
    }
  }

  private async compare(model: Model): Promise<void> {
    const seen = await this.eyes.see(this.key, PROCESSES.map((name) => String(executionKey(this.owner(name)))));
    for (const token of seen.holders.map((m) => m.token).sort((a, b) => a - b)) this.number(token);
    const nameOf = (text: string) => [...this.channels].find(([, known]) => known === text)?.[0] ?? text;
    const below = (floor: number) => this.tokens.filter((token) => token < floor).length;
    const real = { ...inRedis(seen, model, { nameOf, below, number: this.number }), waiting: this.parked.map(({ id }) => id).sort() };
    assert.deepEqual(real, { ...inModel(model, this.key), waiting: [...this.awaited.keys()].sort() });
    if (model.keyTtl === 'leases') {
      const longest = Math.max(0, ...seen.holders.map(({ ends }) => ends));
      assert.ok(Math.abs(seen.keyEnds - longest) <= 2, `K ends at ${seen.keyEnds}, its longest lease at ${longest}`);
    }
  }

  /** From its place in line, that is stored with the name of its channel. */
  private async learnChannel(name: (typeof LIVE)[number]): Promise<void> {
    this.key = 'warm-up';
    await this.redis.set(this.key, 'foreign');
    const parked = this.park({ id: name, channel: name, limit: 1, ttl: TTL, holds: [], once: false, newest: false, settles: false }, 0);
    // Under its own name, once it listens.
    const channel = await until(async () => {
      const at = (await this.eyes.see(this.key, [])).waits.get(name)?.channel;
      return at?.startsWith('poll:') ? undefined : at;
    });
    this.channels.set(name, channel);
    parked.abort.abort();
    await parked.result;
  }
}
