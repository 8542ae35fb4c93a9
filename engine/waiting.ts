import type { LockKeys } from './keys';
import { Waiter, WaitingLine } from './line';
import { CLAIM_MS, type AcquireReply, type Caller, type Transitions } from './transitions';
import { RedisLockError } from './errors';
import type { Busy, Grant, TimedOut } from './types';
import { WakeUp, type Message } from './wakeup';

/** Granted, and `performance.now()` of the moment before it was asked for: the lease counts from there. */
export interface Won {
  outcome: 'acquired';
  grant: Grant;
  asked: number;
}

const busy = ({ reason, holders, queue }: Extract<AcquireReply, { kind: 'busy' }>): Busy => ({ outcome: 'busy', reason, holders, queue });

/** Acquiring, at once or by waiting in line until a deadline. */
export class Waiting {
  private readonly wakeUp: WakeUp;
  private readonly line: WaitingLine;
  private readonly running = new Set<Promise<unknown>>();

  constructor(private readonly transitions: Transitions) {
    this.wakeUp = new WakeUp(
      transitions.makeSubscriber,
      (message) => this.hear(message),
      () => this.line.all().forEach((waiter) => waiter.notify()),
    );
    this.line = new WaitingLine(
      (witness) => this.look(witness),
      () => this.wakeUp.polling,
    );
  }

  /** Callers that wait in this process. */
  get size(): number {
    return this.line.size;
  }

  async tryOnce(caller: Caller, stealAfterMs: number): Promise<Won | Busy> {
    const asked = performance.now();
    const reply = await this.transitions.acquire(caller, { waitMs: -1, channel: '-', arrived: 0 }, stealAfterMs);
    return reply.kind === 'acquired' ? { outcome: 'acquired', grant: reply.grant, asked } : busy(reply as Extract<AcquireReply, { kind: 'busy' }>);
  }

  /** @throws the reason of `signal`, once the line is left and a grant given back */
  async wait(caller: Caller, waitMs: number, stealAfterMs: number, signal?: AbortSignal): Promise<Won | Busy | TimedOut> {
    const waiter = new Waiter(caller.keys, caller.lockId);
    const onAbort = () => waiter.interrupt(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    this.line.add(waiter);
    const run = this.inLine(caller, waiter, waitMs, stealAfterMs);
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
      signal?.removeEventListener('abort', onAbort);
    }
  }

  /** Ends all waits: each leaves the line and rejects. */
  async close(reason: unknown): Promise<void> {
    for (const waiter of this.line.all()) waiter.interrupt(reason);
    await Promise.all(this.running);
    this.wakeUp.close();
  }

  private async inLine(caller: Caller, waiter: Waiter, waitMs: number, stealAfterMs: number): Promise<Won | Busy | TimedOut> {
    const started = performance.now();
    const since = this.transitions.now();
    const deadline = started + waitMs;
    const { keys, lockId, index } = caller;
    let arrived = 0;
    let asked = started;
    const ask = (joining: boolean) => {
      waiter.asking();
      asked = performance.now();
      const left = joining ? Math.max(0, Math.round(deadline - asked)) : -1;
      return this.transitions.acquire(caller, { waitMs: left, channel: joining ? this.wakeUp.channel : '-', arrived }, stealAfterMs);
    };

    // Whoever joins the line listens first. A process that does not listen yet tries without joining, so that a free
    // lock costs one round trip here too.
    let reply = await ask(this.wakeUp.ready);
    if (reply.kind === 'busy' && reply.reason !== 'lineFull') {
      await this.wakeUp.open(this.transitions.connection.limitMs);
      if (!waiter.interrupted) reply = await ask(true);
    }
    for (;;) {
      if (waiter.interrupted) {
        // Without an answer Redis is told later: the caller must not wait for that, nor hear of it instead of its reason.
        await this.transitions.leave(keys, lockId, index, 'back', since).catch(() => {});
        return Promise.reject(waiter.interrupted.value);
      }
      if (reply.kind === 'acquired') {
        return { outcome: 'acquired', asked, grant: { ...reply.grant, waitedMs: Math.round(performance.now() - started) } };
      }
      if (reply.kind === 'busy') return busy(reply);
      arrived = reply.ticket;
      this.line.expect(keys.full, reply.nextMs);
      const event = await waiter.next(deadline);
      if (event === 'look') {
        reply = await this.askAgain(() => ask(true), reply);
      } else if (event === 'deadline') {
        asked = performance.now();
        const { grant, queue } = await this.transitions.leave(keys, lockId, index, 'take');
        const waitedMs = Math.round(performance.now() - started);
        if (grant) reply = { kind: 'acquired', grant };
        else return { outcome: 'timedOut', waitedMs, queue, holders: await this.holders(keys) };
      }
    }
  }

  /** Who is in the way, for people. That the line was left is certain already, so this must not fail. */
  private async holders(keys: LockKeys): Promise<TimedOut['holders']> {
    return (await this.transitions.status(keys).catch(() => undefined))?.holders ?? [];
  }

  /** While Redis is away a waiter stays a waiter, until its deadline; whatever else is wrong ends the wait. */
  private askAgain(ask: () => Promise<AcquireReply>, before: AcquireReply): Promise<AcquireReply> {
    return ask().catch((error: unknown) =>
      error instanceof RedisLockError && error.code === 'unavailable' ? before : Promise.reject(error),
    );
  }

  private hear({ kind, lockId, key }: Message): void {
    if (kind === 'look') {
      this.line.expect(key, CLAIM_MS);
      return;
    }
    const waiter = this.line.find(key, lockId);
    if (waiter) waiter.notify();
    // Nobody here waits for it any more: on with it to the next in line. Unless it was claimed already: the message can
    // come after the answer that said so, and its holder is at work by now.
    else this.transitions.disown(this.transitions.keysOfFull(key), lockId, undefined, 'unclaimed');
  }

  private async look(witness: Waiter): Promise<number> {
    const { keys, lockId } = witness;
    const { nextMs, known, granted } = await this.transitions.look(keys, this.wakeUp.channel, lockId);
    // Redis does not know our witness: it lost its data, and the others' places with it.
    if (!known) this.line.all(keys.full).forEach((waiter) => waiter.notify());
    for (const id of granted) this.line.find(keys.full, id)?.notify();
    return nextMs;
  }
}
