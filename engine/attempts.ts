import type { Writable } from 'node:stream';
import type { Client } from './connection';
import type { Deadlines, Pending } from './deadlines';
import { isPassing, type RedisLockError } from './errors';

/** Something to ask Redis. */
export interface Call<A, T = A> {
  call: (client: Client) => Promise<A>;
  /** Makes the result of an answer; what it throws is passed on. */
  read?: (answer: A) => T;
  /** Whether `call` will do otherwise after this error, so that it is worth another attempt. */
  mend?: (error: unknown) => boolean;
  limitMs?: number;
  /** Nobody awaits the answer: the process may end before it comes. */
  inBackground?: boolean;
  /** It has left before this returns: what the caller does next may keep the process busy for long. */
  atOnce?: boolean;
}

/** What a call needs of its connection. */
export interface Ways {
  readonly deadlines: Deadlines;
  /** Calls that wait for a connection. One set for all, since a listener each would be hundreds on one client. */
  readonly parked: Set<Attempts<unknown, unknown>>;
  /** The client, where it is connected. */
  ready(): Client | undefined;
  /** Sees to it that a connection comes about, where nobody does yet; an error where none can. */
  connect(): RedisLockError | undefined;
  /** Drops the socket. What was in flight is sent again on the next one: every script may be repeated. */
  reset(): void;
  explain(error: unknown): RedisLockError;
  timeout(sent: boolean, last: unknown): RedisLockError;
}

/** One call until its answer, its error or its deadline: as many attempts as that takes. */
export class Attempts<A, T> implements Pending {
  readonly until: number;
  readonly inBackground: boolean;
  earlier: Pending | undefined = undefined;
  later: Pending | undefined = undefined;
  private settled = false;
  private sent = false;
  private last: unknown;

  constructor(
    private readonly ways: Ways,
    private readonly call: Call<A, T>,
    limitMs: number,
    private readonly resolve: (value: T) => void,
    private readonly reject: (error: unknown) => void,
  ) {
    this.until = performance.now() + (call.limitMs ?? limitMs);
    this.inBackground = call.inBackground === true;
    ways.deadlines.add(this);
  }

  next(): void {
    if (this.settled) return;
    const client = this.ways.ready();
    if (!client) {
      this.ways.parked.add(this as Attempts<unknown, unknown>);
      const refused = this.ways.connect();
      if (refused) this.fail(refused);
      return;
    }
    this.sent = true;
    // One on its own leaves at once.
    if (this.ways.deadlines.size > 1) sendTogether(client);
    this.call.call(client).then(this.onAnswer, this.onError);
    if (this.call.atOnce) sendNow(client);
  }

  fail(error: unknown): void {
    if (this.settled) return;
    this.finish();
    this.reject(this.ways.explain(error));
  }

  expire(): void {
    // An answer may never come on this socket (half open). The next call shall not wait for it as well.
    if (this.sent) this.ways.reset();
    this.fail(this.ways.timeout(this.sent, this.last));
  }

  private readonly onAnswer = (answer: A): void => {
    if (this.settled) return;
    this.finish();
    try {
      this.resolve(this.call.read ? this.call.read(answer) : (answer as unknown as T));
    } catch (error) {
      this.reject(error);
    }
  };

  private readonly onError = (error: unknown): void => {
    if (this.call.mend?.(error)) {
      this.next();
    } else if (isReply(error) && !isPassing(error)) {
      if (/READONLY/.test(String(error))) this.ways.reset();
      this.fail(error);
    } else {
      this.last = error;
      if (!this.ways.ready()) this.next();
      // No answer, though connected (a time limit of the caller's own client, for one), or not yet.
      else setTimeout(() => this.next(), 50 + Math.random() * 50).unref();
    }
  };

  private finish(): void {
    this.settled = true;
    this.ways.deadlines.remove(this);
    if (this.ways.parked.size > 0) this.ways.parked.delete(this as Attempts<unknown, unknown>);
  }
}

/** A socket, and how many commands wait in it. */
type Together = Writable & { together?: number | undefined };

function sendNow(client: Client): void {
  const { stream } = client as unknown as { stream?: Together };
  if (stream?.together === undefined) return;
  stream.uncork();
  stream.cork();
}

/** So many commands leave in one write. */
const MOST_TOGETHER = 16;

/**
 * What is sent until the callbacks of this moment have run leaves in few writes: a write to a socket costs more than all
 * else that a process does for a command. Not in one, for Redis shall be at work on the first while the others are made.
 */
function sendTogether(client: Client): void {
  const { stream } = client as unknown as { stream?: Together };
  if (!stream) return;
  if (stream.together === undefined) {
    stream.together = 0;
    stream.cork();
    process.nextTick(() => {
      stream.together = undefined;
      stream.uncork();
    });
  }
  stream.together += 1;
  if (stream.together % MOST_TOGETHER === 0) {
    stream.uncork();
    stream.cork();
  }
}

/** An answer of Redis, as opposed to a failure of the connection. */
function isReply(error: unknown): boolean {
  return error instanceof Error && error.name === 'ReplyError';
}
