import type { LockKeys } from './keys';
import type { Alive, AlreadyReleased, Grant, Lost, NotHeld, Released } from './types';

export interface Acquired {
  outcome: 'acquired';
  lock: Lock;
}

/** That what the key stands for was done: remembered for `doneForMs`, with up to 4 kB of JSON for those who come later. */
export interface Done {
  doneForMs: number;
  result?: unknown;
}

/** What a handle needs of the engine. */
export interface LockHost {
  heartbeat(lock: Lock, ttlMs: number | undefined, renewEveryMs: number | undefined): Promise<Alive | Lost>;
  release(lock: Lock, done?: Done): Promise<Released | AlreadyReleased | NotHeld>;
}

/** A lease that was granted. Renewing updates the handle in place. */
export class Lock {
  private ttl: number;

  /** @param validUntil `performance.now()` of the end of the lease, counted from before it was asked for */
  constructor(
    private readonly host: LockHost,
    readonly keys: LockKeys,
    readonly lockId: string,
    readonly hold: string | undefined,
    /** Index of the execution that holds it. */
    readonly index: string | undefined,
    private validUntil: number,
    /** How it came about. */
    readonly grant: Grant,
    /** Redis is being told that a lock that was handed over was taken; resolves when it has confirmed that. */
    readonly claim?: Promise<Alive | Lost>,
    /** `performance.now()` before that was asked. */
    claimAsked = 0,
  ) {
    this.ttl = grant.ttlMs;
    if (claim) this.follow(claim, claimAsked);
  }

  /** Until the claim is confirmed the lease is as short as a hand-over that nobody takes. */
  private follow(claim: Promise<Alive | Lost>, asked: number): void {
    const { validUntil } = this;
    void claim.then((answer) => {
      // A heartbeat or release that came after it knows better.
      if (this.validUntil === validUntil) this.validUntil = answer.outcome === 'alive' ? asked + answer.ttlMs : 0;
    });
  }

  get key(): string {
    return this.keys.key;
  }

  /** Grows with every grant of this key; hand it to whatever the lock protects. */
  get fencingToken(): number {
    return this.grant.fencingToken;
  }

  get ttlMs(): number {
    return this.ttl;
  }

  /** Ms that are surely left of the lease, by this machine's clock; 0 when it may have run out. */
  expiresInMs(): number {
    return Math.max(0, Math.floor(this.validUntil - performance.now()));
  }

  /**
   * Renews the lease to the full TTL, also one that ran out while nobody entered (`revived`).
   * @param ttlMs another TTL from now on
   * @param announce `renewEveryMs`: another interval of renewals from now on, see `AcquireOptions`; 0 announces none
   * @throws RedisLockError when Redis can't be asked
   */
  async heartbeat(ttlMs?: number, announce: { renewEveryMs?: number } = {}): Promise<Alive | Lost> {
    const asked = performance.now();
    const result = await this.host.heartbeat(this, ttlMs, announce.renewEveryMs);
    if (result.outcome === 'alive') {
      this.ttl = result.ttlMs;
      this.validUntil = asked + result.ttlMs;
    } else {
      this.validUntil = 0;
    }
    return result;
  }

  /**
   * Gives this hold back; with the last one the lock is free, and the first waiter has it.
   * @param done the work was done: from the same moment on `Locks.acquireOnce` says so
   * @throws LockOptionError · RedisLockError when Redis can't be asked
   */
  async release(done?: Done): Promise<Released | AlreadyReleased | NotHeld> {
    const result = await this.host.release(this, done);
    this.validUntil = 0;
    return result;
  }
}
