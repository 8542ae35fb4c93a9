import { randomBytes } from 'node:crypto';
import type { Lock, Locks } from '../../engine';
import { ownerOfHeld, type HeldLock } from './held';

/**
 * Looks after the locks of all executions that run in this process: renews them while their execution runs, and does what
 * was asked for when it ends. Nothing here leads to an execution's data but the small record of its locks.
 */

/** How an execution came to its end; `unknown`: it ended, well or not. */
export type Ending = 'success' | 'error' | 'stopped' | 'waiting' | 'unknown';

/** A connection that stays open until it is given back. */
export interface Retained {
  locks: Locks;
  giveBack(): void;
}

/** This process, for one that goes on with its executions. */
export const THIS_PROCESS = randomBytes(8).toString('hex');

const LONGEST_TTL_MS = 30 * 86_400_000;
/** Renewals that are due so soon after another go along with it. */
const TOGETHER_MS = 50;

/** Renewals of a lease: three in its TTL. */
export const renewEveryMs = (ttlMs: number) => Math.max(1, Math.floor(ttlMs / 3));

/** The locks of one execution, as long as it runs in this process. */
export class Caretaker {
  readonly connections = new Map<string, Retained>();
  /** `performance.now()` of the next renewal of a lock, by lock id. */
  readonly due = new Map<string, number>();
  /** That it goes to wait is not told: it may go on elsewhere, and never end here. */
  waitsUnseen = false;
  private ended = false;

  /** @param store the record of its locks in the execution's data */
  constructor(
    readonly name: string,
    readonly store: Record<string, HeldLock>,
    readonly instanceId: string | undefined,
    private readonly keeper: Keeper,
  ) {}

  /** Locks in the Redis of that connection can be looked after from now on. */
  connect(server: string, retain: () => Retained): void {
    if (this.ended) return;
    if (!this.connections.has(server)) this.connections.set(server, retain());
  }

  handle(held: HeldLock): Lock | undefined {
    const { key, lockId, fencingToken } = held;
    return this.connections
      .get(held.server)
      ?.locks.resume(key, { lockId, fencingToken, owner: ownerOfHeld(held, this.instanceId) });
  }

  /** From now on this lock is renewed. */
  watch(held: HeldLock): void {
    if (this.ended) return;
    this.keeper.watch(this, held);
  }

  /** Its execution ended, or went to wait until `waitTill` (ms since 1970). Never rejects: a lock that can't be reached ends by its TTL. */
  async end(ending: Ending, waitTill = Infinity): Promise<void> {
    this.ended = true;
    this.keeper.leave(this);
    const settle = async (held: HeldLock) => {
      const lock = this.handle(held);
      if (lock) await settleAtEnd(lock, held, ending, waitTill);
    };
    await Promise.allSettled(Object.values(this.store).map(settle));
    this.letGo();
  }

  letGo(): void {
    this.ended = true;
    this.keeper.leave(this);
    for (const { giveBack } of this.connections.values()) giveBack();
    this.connections.clear();
  }
}

async function settleAtEnd(lock: Lock, held: HeldLock, ending: Ending, waitTill: number): Promise<void> {
  const { ttlMs, releaseOnEnd, holdUntil, keepAlive, stopGraceMs, ofCaller, rememberMs } = held;
  // The calling execution goes on and has it.
  if (ofCaller === 'cared') return;
  if (ending === 'waiting') {
    if (!keepAlive) return;
    // Nothing of ours runs until the execution does again: the lease has to last until then.
    const now = Date.now();
    const pause = Math.max(0, Math.min(waitTill, holdUntil) - now);
    await lock.heartbeat(Math.min(LONGEST_TTL_MS, pause + ttlMs), { renewEveryMs: 0 });
  } else if (ofCaller === 'uncared') {
    // The calling execution has it from here on, and no node of it has run here that would look after it.
    await lock.heartbeat(ttlMs, { renewEveryMs: 0 });
  } else if (ending === 'stopped') {
    // Code of other nodes may still be running.
    if (releaseOnEnd === 'always') await lock.heartbeat(Math.min(ttlMs, stopGraceMs));
  } else if (releaseOnEnd === 'always' || (releaseOnEnd === 'success' && ending === 'success')) {
    // A failed one leaves no mark: whoever sends it again gets through.
    await lock.release(ending === 'success' && rememberMs ? { doneForMs: rememberMs } : undefined);
  }
}

/** All executions of this process that hold locks, and one timer for all renewals. */
export class Keeper {
  private readonly caretakers = new Set<Caretaker>();
  private timer: NodeJS.Timeout | undefined;
  private timerAt = Infinity;

  /** The caretaker of an execution that runs here and has met a Redis Lock node. */
  find(name: string): Caretaker | undefined {
    for (const caretaker of this.caretakers) if (caretaker.name === name) return caretaker;
    return undefined;
  }

  create(name: string, store: Record<string, HeldLock>, instanceId: string | undefined): Caretaker {
    const caretaker = new Caretaker(name, store, instanceId, this);
    this.caretakers.add(caretaker);
    return caretaker;
  }

  leave(caretaker: Caretaker): void {
    this.caretakers.delete(caretaker);
    if (this.caretakers.size > 0) return;
    clearTimeout(this.timer);
    this.timerAt = Infinity;
  }

  watch(caretaker: Caretaker, held: HeldLock): void {
    if (!isRenewed(held)) return;
    const at = nextAt(renewEveryMs(held.ttlMs));
    caretaker.due.set(held.lockId, at);
    this.wakeAt(at);
  }

  private wakeAt(at: number): void {
    if (at >= this.timerAt) return;
    clearTimeout(this.timer);
    this.timerAt = at;
    this.timer = setTimeout(() => this.renewAll(), Math.max(0, at - performance.now()));
    this.timer.unref();
  }

  /** What is due at the same moment leaves in the same write: a hundred executions cost one round trip. */
  private renewAll(): void {
    this.timerAt = Infinity;
    const until = performance.now() + TOGETHER_MS;
    for (const caretaker of this.caretakers) {
      for (const [lockId, at] of caretaker.due) {
        const held = caretaker.store[lockId];
        if (!held || !isRenewed(held)) caretaker.due.delete(lockId);
        else if (at <= until) void this.renew(caretaker, held);
        else this.wakeAt(at);
      }
      if (caretaker.waitsUnseen && caretaker.due.size === 0) caretaker.letGo();
    }
  }

  private async renew(caretaker: Caretaker, held: HeldLock): Promise<void> {
    const every = renewEveryMs(held.ttlMs);
    const again = (everyMs: number) => {
      const at = nextAt(everyMs);
      caretaker.due.set(held.lockId, at);
      this.wakeAt(at);
    };
    // Before the answer: one that fails to come must not hold up the next attempt.
    again(every);
    const goesOn = () => this.caretakers.has(caretaker) && caretaker.due.has(held.lockId);
    try {
      const beat = await caretaker.handle(held)?.heartbeat(held.ttlMs, { renewEveryMs: every });
      if (beat?.outcome === 'lost' && caretaker.store[held.lockId] === held) {
        held.lost = beat.reason;
        caretaker.due.delete(held.lockId);
      } else if (beat?.outcome === 'alive' && beat.keyTtlShortened !== undefined && goesOn()) {
        // A hand-built chain sets the key's TTL again and again: the key must not end between two renewals.
        again(Math.min(every, renewEveryMs(beat.keyTtlShortened)));
      }
    } catch {
      // Redis can't be asked. The lease lasts for two more attempts.
    }
  }
}

function isRenewed({ keepAlive, lost, ofCaller, holdUntil }: HeldLock): boolean {
  return keepAlive && lost === undefined && ofCaller !== 'cared' && Date.now() < holdUntil;
}

/** The next moment of a grid that is the same for all locks of one TTL, so that their renewals meet. */
const nextAt = (everyMs: number) => (Math.floor(performance.now() / everyMs) + 1) * everyMs;
