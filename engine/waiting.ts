import { Aborts } from './aborts';
import { RedisLockError } from './errors';
import type { LockKeys } from './keys';
import { Leaving } from './leaving';
import { Waiter, WaitingLine } from './line';
import { CLAIM_MS, MOST_IDS, type Caller } from './calls';
import type { AcquireReply, Left, Transitions, Won } from './transitions';
import type { Alive, Busy, DoneBefore, Grant, Lost, TimedOut } from './types';
import { WakeUp, type HandOver } from './wakeup';

/** Granted; with `claim` the lock was handed over, and Redis is being told at this moment that it was taken. */
export type Entry = Won & { claim?: Promise<Alive | Lost>; claimAsked?: number };

export interface WaitOptions {
  waitMs: number;
  keepPlaceMs: number;
  stealAfterMs: number;
  /** A lock that was handed over is entered only when Redis has confirmed it. */
  confirm: boolean;
  signal: AbortSignal | undefined;
}

/** See lua/leave.lua. */
const ONLY_IF_IT_HAS_TO = -1;

/** A message older than this is not trusted without asking: most of the time to claim shall be left. */
const FRESH_MS = CLAIM_MS / 3;

/** Acquiring, at once or by waiting in line until a deadline. */
export class Waiting {
  private readonly wakeUp: WakeUp;
  private readonly line: WaitingLine;
  private readonly leaving: Leaving;
  private readonly aborts = new Aborts();
  private readonly running = new Set<Promise<unknown>>();

  constructor(private readonly transitions: Transitions) {
    this.wakeUp = new WakeUp(transitions.calls.makeSubscriber, {
      onHandOver: (message) => this.handOver(message),
      onLook: (key) => this.line.expect(key, CLAIM_MS),
      onMore: (key) => this.line.expect(key, 0),
      onOut: (key, lockId) =>
        (lockId === '*' ? this.line.all(key) : [this.line.find(key, lockId)]).forEach((waiter) => waiter?.hasPolicy && waiter.out()),
      onListening: () => this.line.keys().forEach((full) => void this.lookForAll(full)),
    });
    this.line = new WaitingLine(
      (waiters) => this.look(waiters),
      this.wakeUp,
    );
    this.leaving = new Leaving(transitions);
  }

  /** Callers that wait in this process. */
  get size(): number {
    return this.line.size;
  }

  async tryOnce(caller: Caller, stealAfterMs: number): Promise<Won | Busy | DoneBefore> {
    const reply = await this.transitions.acquire(caller, { waitMs: -1, channel: '-', arrived: 0 }, stealAfterMs);
    return reply as Won | Busy | DoneBefore;
  }

  /** @throws the reason of `signal`, once the line is left and a grant given back */
  async wait(caller: Caller, options: WaitOptions): Promise<Entry | Busy | TimedOut | DoneBefore> {
    const waiter = new Waiter(caller.keys, caller.lockId, caller.policy !== undefined);
    const { signal } = options;
    const onAbort = () => waiter.interrupt(signal?.reason);
    if (signal) this.aborts.add(signal, onAbort);
    this.line.add(waiter);
    const run = this.inLine(caller, waiter, options);
    const settled = run.catch(() => {});
    this.running.add(settled);
    try {
      return await run;
    } catch (error) {
      // Whatever ended the wait: no place in line is left behind. (Without an answer that was seen to already.)
      if (error instanceof RedisLockError && error.code !== 'unavailable') {
        this.transitions.disown(caller.keys, caller.lockId, caller.index, 'unclaimed');
      }
      return Promise.reject(error);
    } finally {
      this.line.remove(waiter);
      this.running.delete(settled);
      if (signal) this.aborts.remove(signal, onAbort);
    }
  }

  /** Ends all waits: each leaves the line and rejects. */
  async close(reason: unknown): Promise<void> {
    for (const waiter of this.line.all()) waiter.interrupt(reason);
    await Promise.all(this.running);
    this.wakeUp.close();
  }

  private async inLine(caller: Caller, waiter: Waiter, options: WaitOptions): Promise<Entry | Busy | TimedOut | DoneBefore> {
    const { keys, lockId, index } = caller;
    const started = performance.now();
    const since = this.transitions.calls.now();
    const deadline = started + options.waitMs;
    const waited = () => Math.round(performance.now() - started);
    let arrived = 0;
    const ask = () => {
      waiter.asking();
      // Until this process listens it looks for itself, and nobody takes its silence for absence.
      waiter.address = this.wakeUp.address;
      // A place that will be kept must not be cleared away in the moment between the deadline and leaving.
      const waitMs = Math.max(0, Math.round(deadline - performance.now())) + options.keepPlaceMs;
      return this.transitions.acquire(caller, { waitMs, channel: waiter.address, arrived }, options.stealAfterMs);
    };

    let reply: AcquireReply = await ask();
    for (;;) {
      if (waiter.interrupted) {
        // Without an answer Redis is told later: the caller must not wait for that, nor hear of it instead of its reason.
        await this.transitions.leave(keys, [{ lockId, index, keepMs: 0 }], 'back', since).catch(() => {});
        return Promise.reject(waiter.interrupted.value);
      }
      if (reply.outcome === 'acquired') {
        // What it was given while it waited is no repetition of a call.
        const again = reply.grant.again && arrived === 0;
        return { ...reply, grant: { ...reply.grant, again, waitedMs: waited() } };
      }
      if (reply.outcome === 'busy' || reply.outcome === 'doneBefore') return reply;
      arrived = reply.ticket;
      this.wakeUp.open();
      this.line.expect(keys.full, reply.nextMs);
      const event = await waiter.next(deadline);
      if (typeof event === 'object') {
        const entry = await this.enter(caller, event, options.confirm);
        // Stopped while Redis was asked to confirm it: then it is given back, as it is when an answer brings it.
        if (waiter.interrupted) continue;
        if (entry) return { ...entry, grant: { ...entry.grant, waitedMs: waited() } };
        reply = await this.askAgain(ask, reply);
      } else if (event === 'look') {
        reply = await this.askAgain(ask, reply);
      } else if (event === 'out') {
        // It need not leave after all, or Redis can't be asked: back to the old place.
        reply = (await this.putOut(caller)) ?? (await this.askAgain(ask, reply));
      } else if (event === 'deadline') {
        const left = await this.timeOut(caller, options.keepPlaceMs);
        if (left.outcome === 'timedOut') return { ...left, waitedMs: waited() };
        reply = left;
      }
    }
  }

  /** Something else than its time may be over for this waiter. @returns nothing where it may stay */
  private async putOut({ keys, lockId, index }: Caller): Promise<Won | Busy | DoneBefore | undefined> {
    const asked = performance.now();
    try {
      const { result } = await this.leaving.leave(keys, { lockId, index, keepMs: ONLY_IF_IT_HAS_TO, hasPolicy: true });
      return settle(result, asked);
    } catch (error) {
      return error instanceof RedisLockError && error.code === 'unavailable' ? undefined : Promise.reject(error);
    }
  }

  private async timeOut({ keys, lockId, index, policy }: Caller, keepMs: number): Promise<Won | Busy | DoneBefore | TimedOut> {
    const asked = performance.now();
    const { result, report } = await this.leaving.leave(keys, { lockId, index, keepMs, hasPolicy: policy !== undefined });
    const { queue, holders } = report;
    return settle(result, asked) ?? { outcome: 'timedOut', waitedMs: 0, queue, holders, ...(keepMs > 0 && { lockId }) };
  }

  /**
   * Takes what was handed over. The lease is the caller's already, for as long as a hand-over lasts unclaimed, so a message
   * that is certainly fresh is as good as an answer: the claim runs beside the entry.
   * @returns nothing where the hand-over is void by now
   */
  private async enter({ keys, lockId, index, ttlMs }: Caller, { fence, at, queue }: HandOver, confirm: boolean): Promise<Entry | undefined> {
    const asked = performance.now();
    const age = this.transitions.calls.since(at);
    const claim = this.transitions.heartbeat(keys, lockId, { token: fence, index, atOnce: true });
    const grant: Grant = { fencingToken: fence, ttlMs, expiresAt: at + Math.min(CLAIM_MS, ttlMs), queue, again: false, waitedMs: 0 };
    if (!confirm && age < FRESH_MS) {
      return { outcome: 'acquired', grant, asked: asked - age, claim: this.claimed(keys, lockId, index, claim), claimAsked: asked };
    }
    const answer = await claim.catch((error: unknown) =>
      error instanceof RedisLockError && error.code === 'unavailable' ? undefined : Promise.reject(error),
    );
    if (answer?.outcome !== 'alive') return undefined;
    return { outcome: 'acquired', asked, grant: { ...grant, ttlMs: answer.ttlMs, expiresAt: answer.expiresAt } };
  }

  /** The end of a claim for one who entered already: if it came too late, the place in line is nobody's. */
  private async claimed(keys: LockKeys, lockId: string, index: string | undefined, claim: Promise<Alive | Lost>): Promise<Alive | Lost> {
    const late = (): Lost => ({ outcome: 'lost', reason: 'expired', at: Date.now() });
    const answer = await claim.catch(late);
    if (answer.outcome === 'lost') this.transitions.disown(keys, lockId, index, 'unclaimed');
    return answer;
  }

  /** While Redis is away a waiter stays a waiter, until its deadline; whatever else is wrong ends the wait. */
  private askAgain(ask: () => Promise<AcquireReply>, before: AcquireReply): Promise<AcquireReply> {
    return ask().catch((error: unknown) =>
      error instanceof RedisLockError && error.code === 'unavailable' ? before : Promise.reject(error),
    );
  }

  private handOver(message: HandOver): void {
    const waiter = this.line.find(message.key, message.lockId);
    if (waiter) waiter.hand(message);
    // Nobody here waits for it any more: on with it to the next in line. Unless it was claimed already: the message can
    // come after the answer that said so, and its holder is at work by now.
    else this.transitions.disown(this.transitions.keysOfFull(message.key), message.lockId, undefined, 'unclaimed');
  }

  /** This process listens from now on, or again: messages that were sent meanwhile are gone. */
  private async lookForAll(full: string): Promise<void> {
    const waiters = this.line.all(full);
    for (let i = 0; i < waiters.length; i += MOST_IDS) {
      // Redis not reachable: then it will be listened to anew.
      const nextMs = await this.look(waiters.slice(i, i + MOST_IDS)).catch(() => undefined);
      if (nextMs !== undefined) this.line.expect(full, nextMs);
    }
  }

  /** @param waiters some of one key: what Redis knows of them is found out too */
  private async look(waiters: Waiter[]): Promise<number> {
    const [witness] = waiters;
    if (!witness) return -1;
    const { keys } = witness;
    const { address } = this.wakeUp;
    const readdress = waiters.some((waiter) => waiter.address !== address);
    const { nextMs, told, unknown, concerned } = await this.transitions.look(keys, address, waiters.map(({ lockId }) => lockId), readdress);
    if (told) waiters.forEach((waiter) => (waiter.address = address));
    // Redis does not know the one witness: it lost its data, and the others' places with it.
    if (waiters.length === 1 && unknown) this.line.all(keys.full).forEach((waiter) => waiter.notify());
    for (const id of concerned) {
      const waiter = this.line.find(keys.full, id);
      // Those who have to leave do so together.
      if (waiter?.hasPolicy) waiter.out();
      else waiter?.notify();
    }
    return nextMs;
  }
}

/** What one who leaves was told, as an answer to its call; nothing where it just left. */
function settle(left: Left, asked: number): Won | Busy | DoneBefore | undefined {
  if (left === undefined || 'outcome' in left) return left;
  return { outcome: 'acquired', asked, grant: left };
}
