/** Shapes of the public API. Times are integers in milliseconds; moments are milliseconds since 1970 by Redis' clock. */

/** Who takes a lock. Metadata for people, stored with the lease: it is never proof of anything. At most 4 kB as JSON. */
export interface Owner {
  executionId?: string;
  instanceId?: string;
  workflowId?: string;
  workflowName?: string;
  nodeName?: string;
  runIndex?: number;
  executionUrl?: string;
  host?: string;
  pid?: number;
  note?: string;
  /** With something to be done once: for so long it is to be remembered as done, whoever gives the lock back. */
  rememberMs?: number;
}

/** A holder as others see it. Its lock id is its secret and is not among this. */
export interface Holder {
  fencingToken: number;
  acquiredAt: number;
  lastHeartbeatAt: number;
  /** Ms since the last heartbeat, by Redis' clock. */
  silentMs: number;
  expiresInMs: number;
  ttlMs: number;
  /** The interval at which it said it would renew; 0 = it announced none. */
  renewEveryMs: number;
  /** Permits of the key, as this holder asked for; a shared one: a million. */
  limit: number;
  mode: 'exclusive' | 'shared';
  owner: Owner;
}

/** A key that something else than Redis Lock holds, most often a hand-built chain of INCR and EXPIRE. */
export interface ForeignHolder {
  foreign: true;
  /** -1 = it never expires. */
  expiresInMs: number;
}

/** Why a lease is not there any more. */
export type LossReason =
  | 'expired' // it ran out, and somebody else was granted the lock since
  | 'stolen'
  | 'keyDeleted' // somebody deleted the key: the operator's unlock
  | 'keyOverwritten' // something of another kind was put under the key
  | 'stateLost' // Redis lost its data
  | 'notHeld' // this id holds nothing here, and nobody remembers why
  | 'notHolder' // somebody else holds it
  | 'foreign' // something else than Redis Lock holds it
  | 'takenOver' // by a newer attempt of the same execution
  | 'freed' // `releaseExecution` gave it back
  | 'unknown'; // too long ago to be remembered, or Redis lost its data and others held the lock since

export interface By {
  fencingToken: number;
  owner: Owner;
}

/** What is known of something that was done under a key, see `Locks.acquireOnce`. */
export interface DoneMark {
  /** When its holder gave the lock back. */
  at: number;
  /** Until when it is remembered. */
  until: number;
  fencingToken: number;
  owner: Owner;
  /** What that holder left for those who come later. */
  result?: unknown;
}

export interface AcquireOptions {
  /** Lease, 10 ms to 30 days. */
  ttlMs: number;
  /** Absent: do not wait. 0: join the line with an immediate deadline. At most 30 days. */
  waitMs?: number;
  /**
   * Holders at once, 1 (default) to 1000. The smallest limit among the holders and the caller counts: nobody is made one of
   * more holders than it asked for.
   */
  limit?: number;
  /**
   * `exclusive` (default) or `shared`: any number of shared holders, or one exclusive one. Strictly in the order of arrival:
   * a waiting exclusive one holds back the shared ones behind it. Not together with `limit`.
   */
  mode?: 'exclusive' | 'shared';
  /**
   * `turn` (default): everyone who waits is served in turn. `newest`: this one puts earlier ones that wait with `newest`
   * out of the line (`busy`, reason `superseded`), and is put out by later ones. Needs `waitMs`.
   */
  waiting?: 'turn' | 'newest';
  /** With `newest`: it is served only when nothing newer has come for so long, also where the lock is free. */
  settleMs?: number;
  /** With `settleMs`: so long after the first of them at most. */
  settleAtMostMs?: number;
  owner?: Owner;
  /** Random by default. Printable ASCII without blanks, at most 128 characters. Whoever knows it may renew and release. */
  lockId?: string;
  /** Name of the hold, to count several takers of one lease (see `Lock.release`). */
  hold?: string;
  /** Announces that the lease will be renewed so often; three missed renewals make it stale for `steal`. */
  renewEveryMs?: number;
  /**
   * A wait that timed out keeps its place in line for so long: another acquire with its `lockId` resumes it. Meanwhile
   * others pass. Needs `waitMs`.
   */
  keepPlaceMs?: number;
  /**
   * A lock that was handed over to a waiter is returned only once Redis has confirmed that it was taken, which costs one more
   * round trip. Without it the lock is returned as the message comes, if that is fresh, and confirmed beside the work: until
   * then, `expiresInMs()` counts the 3 s that a hand-over lasts. So a connection that drops in just that moment can
   * cost the lock after 3 s, whatever its TTL.
   */
  confirm?: boolean;
  /** Takes over from a holder that was not heard of for longer than this. */
  stealIfStaleMs?: number;
  /** Ends a wait: the line is left, and a lock granted meanwhile is given back. The call rejects with its reason. */
  signal?: AbortSignal;
}

/** For several locks at once: exclusive ones, each waited for in turn. */
export type AcquireAllOptions = Pick<AcquireOptions, 'ttlMs' | 'waitMs' | 'owner' | 'lockId' | 'hold' | 'renewEveryMs' | 'signal'>;

export type StealCondition = 'stale' | 'noTtl' | 'any' | { fencingToken: number };

export interface StealOptions {
  if: StealCondition;
  ttlMs: number;
  /** With `stale`: silent for longer than this. Absent: missed three of the renewals that it announced. */
  staleMs?: number;
  limit?: number;
  owner?: Owner;
  lockId?: string;
  hold?: string;
  renewEveryMs?: number;
}

/** A lease as it was granted. */
export interface Grant {
  fencingToken: number;
  ttlMs: number;
  expiresAt: number;
  /** Waiters behind it. */
  queue: number;
  /** This id held the lock already: a repeated call. */
  again: boolean;
  waitedMs: number;
  /** Whom it was taken from, by `steal` or `stealIfStaleMs`. */
  robbed?: Holder | ForeignHolder;
}

export type BusyReason =
  | 'held'
  | 'foreign' // something else than Redis Lock holds it
  | 'lineFull'
  | 'superseded' // a newer one that waits with `newest` came
  | 'otherLimit'; // there is room by the caller's limit, but not by that of a holder

export interface Busy {
  outcome: 'busy';
  reason: BusyReason;
  holders: Array<Holder | ForeignHolder>;
  /** Length of the line. */
  queue: number;
  /** With `superseded`: whose the newer one is. */
  newer?: Owner;
}

/** Of `acquireOnce`: what the key stands for was done already. */
export interface DoneBefore {
  outcome: 'doneBefore';
  done: DoneMark;
}

/** Which of several keys could not be had: nothing is held. */
export interface OfKey {
  key: string;
}

export interface TimedOut {
  outcome: 'timedOut';
  waitedMs: number;
  holders: Array<Holder | ForeignHolder>;
  queue: number;
  /** Present with `keepPlaceMs`: acquire with it to resume the place in line. */
  lockId?: string;
}

export type NotStolenReason =
  | 'free' // nobody holds it: acquire it
  | 'notStale'
  | 'tooYoung' // `any` leaves a grant alone for its first 5 s
  | 'otherHolder' // it has another fencing token by now
  | 'notForeign'
  | 'hasTtl' // it will end by itself
  | 'otherLimit' // in its place the caller would be one of more holders than it asked for
  | 'foreign'; // this condition does not apply to a key of another kind

export interface NotStolen {
  outcome: 'notStolen';
  reason: NotStolenReason;
  holders: Array<Holder | ForeignHolder>;
  queue: number;
}

export interface Alive {
  outcome: 'alive';
  fencingToken: number;
  ttlMs: number;
  expiresAt: number;
  /** The lease had run out, and nobody had entered in its place. */
  revived: boolean;
  /** A stranger (a chain's EXPIRE) had cut the key's TTL to so many ms. It was set back. */
  keyTtlShortened?: number;
}

export interface Lost {
  outcome: 'lost';
  reason: LossReason;
  /** When it was lost, or found to be. */
  at: number;
  /** Who took it; absent when nobody did. */
  by?: By;
}

export interface Released {
  outcome: 'released';
  /** The lease had run out before, and nobody had entered since. */
  expiredBefore: boolean;
  /** Holds that are left: the lock stays held until they are given back. */
  holdsLeft: number;
}

export interface AlreadyReleased {
  outcome: 'alreadyReleased';
}

export interface NotHeld {
  outcome: 'notHeld';
  reason: LossReason;
  at: number;
  by?: By;
}

export type LockState = 'free' | 'held' | 'stale' | 'expiring' | 'noTtl' | 'foreign' | 'doneMark';

export interface Status {
  key: string;
  state: LockState;
  /** A hundred at most, the newest first. */
  holders: Array<Holder | ForeignHolder>;
  /** How many hold it. */
  holderCount: number;
  /** What the key stands for was done. */
  done?: DoneMark;
  /** Length of the line. */
  queue: number;
  /** The newest fencing token that was given; 0 = none is known. */
  fencingToken: number;
}

export interface LocksOptions {
  /** Limit for every command, connecting included; 5,000 by default. */
  commandTimeoutMs?: number;
  /** The fencing counter of a key is kept so long after its last lease; 7 days by default. */
  fencingRetentionMs?: number;
  /** Waiters of one key, 10,000 by default; beyond them an acquire is busy with reason `lineFull`. */
  maxWaiters?: number;
}
