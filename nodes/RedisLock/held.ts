import type { IExecuteFunctions } from 'n8n-workflow';
import type { Owner } from '../../engine';

/** What an execution holds, as it knows it itself. Redis decides. */

/** What becomes of a lock when its execution ends. */
export type ReleaseOnEnd = 'always' | 'success' | 'never';

/** A lock of this execution. Kept in the execution's own data, so it survives a Wait and a resume in another worker. */
export interface HeldLock {
  key: string;
  lockId: string;
  fencingToken: number;
  ttlMs: number;
  /** host:port/database: a node with another credential does not see it. */
  server: string;
  /** Names of the Acquire and Steal nodes that took it: each has a hold. */
  holds: string[];
  /** The execution that it was granted to: another one than this in a retry. */
  executionId?: string;
  /** The process that it was granted in, or that went on with it. */
  process: string;
  keepAlive: boolean;
  releaseOnEnd: ReleaseOnEnd;
  /** Ms since 1970, by this machine's clock, from when on it is not renewed any more. */
  holdUntil: number;
  /** What is left of it when the execution is stopped. */
  stopGraceMs: number;
  /** The next Redis Lock node fails when it was lost. */
  stopWhenLost: boolean;
  note: string;
  /** With Acquire Once: its release after success is remembered as done for so long. */
  rememberMs?: number;
  /** With Acquire Once: the execution that took it, which stays so in a retry. */
  onceIn?: string;
  /** Id of the whole, where several keys were taken together. */
  group?: string;
  /** Held together with others that hold it shared. */
  shared?: boolean;
  /** It belongs to the calling execution, which looks after it itself, or does not (no node of it has run here). */
  ofCaller?: 'cared' | 'uncared';
  /** Why it was lost, as a renewal or a resumed run found. */
  lost?: string;
  /** A node has failed for that already. */
  lostWasTold?: boolean;
}

/** How a lock is looked after. */
export type Care = Pick<HeldLock, 'keepAlive' | 'releaseOnEnd' | 'holdUntil' | 'stopGraceMs' | 'stopWhenLost' | 'note' | 'rememberMs'>;

const CONTEXT = 'redisLock';
const PLACES = 'redisLockPlaces';

type Store = Record<string, HeldLock>;

/** The run's own data, the same object for all nodes of one run in one process. */
export const runDataOf = (context: IExecuteFunctions): object => context.getContext('flow');

/** The locks among an execution's data. Whoever keeps this keeps nothing else of the execution. */
export function storeOf(context: IExecuteFunctions): Store {
  const flow = context.getContext('flow') as Record<string, unknown>;
  flow[CONTEXT] ??= {};
  return flow[CONTEXT] as Store;
}

/** Lock ids of waits that timed out and kept their places in line, by server and key. */
export function placesOf(context: IExecuteFunctions): Record<string, string> {
  const flow = context.getContext('flow') as Record<string, unknown>;
  flow[PLACES] ??= {};
  return flow[PLACES] as Record<string, string>;
}

/** What an execution holds in one Redis. */
export class HeldLocks {
  /** @param onAdd a lock of this execution is there, or has changed */
  constructor(
    private readonly store: Store,
    private readonly server: string,
    private readonly onAdd: (held: HeldLock) => void = () => {},
  ) {}

  all(): HeldLock[] {
    return Object.values(this.store).filter(({ server }) => server === this.server);
  }

  byKey(key: string): HeldLock | undefined {
    return this.all().find((lock) => lock.key === key);
  }

  byId(lockId: string): HeldLock | undefined {
    return this.all().find((lock) => lock.lockId === lockId);
  }

  /** Locks that were taken together. */
  byGroup(group: string): HeldLock[] {
    return this.all().filter((lock) => lock.group === group);
  }

  byNode(node: string): HeldLock[] {
    return this.all().filter(({ holds }) => holds.includes(node));
  }

  /** A lock that was granted, or another hold on one that is held already. */
  add(lock: Omit<HeldLock, 'server' | 'holds'>, hold: string): HeldLock {
    const known = this.store[lock.lockId as string];
    const holds = known?.holds ?? [];
    // The same object: whoever renews it reads its TTL from there.
    const held = Object.assign(known ?? {}, lock, known && careOfBoth(known, lock), {
      server: this.server,
      holds: holds.includes(hold) ? holds : [...holds, hold],
    }) as HeldLock;
    this.store[held.lockId] = held;
    this.onAdd(held);
    return held;
  }

  /** One hold was given back, or (no `hold`) the lock is gone. */
  drop(lockId: string, hold?: string): void {
    const lock = this.store[lockId];
    if (!lock) return;
    lock.holds = hold === undefined ? [] : lock.holds.filter((name) => name !== hold);
    if (lock.holds.length === 0) delete this.store[lockId];
  }
}

/** Who took it first says what becomes of it; it is kept alive as long as one of them wants it. */
function careOfBoth(first: Care, second: Care): Care {
  const { releaseOnEnd, stopGraceMs, stopWhenLost, note } = first;
  return {
    releaseOnEnd, stopGraceMs, stopWhenLost, note,
    keepAlive: first.keepAlive || second.keepAlive,
    holdUntil: Math.max(first.holdUntil, second.holdUntil),
    rememberMs: first.rememberMs ?? second.rememberMs,
  };
}

/** The index of the execution that a lock was granted to. */
export const ownerOfHeld = (lock: HeldLock, instanceId: string | undefined): Owner => ({ instanceId, executionId: lock.executionId });
