import { hostname } from 'node:os';
import { NodeOperationError, type IExecuteFunctions, type IDataObject } from 'n8n-workflow';
import type { Owner } from '../../engine';

/** The one place that asks n8n about the execution: who it is, what it holds, whether it was stopped. */

/** Who takes the lock, for people to read. */
export function ownerOf(context: IExecuteFunctions, note: string): Owner {
  const { id, name } = context.getWorkflow();
  const executionId = context.getExecutionId();
  const base = context.getInstanceBaseUrl?.();
  return {
    executionId,
    instanceId: context.getInstanceId?.(),
    workflowId: id,
    workflowName: name,
    nodeName: context.getNode().name,
    runIndex: (context as unknown as { runIndex?: number }).runIndex,
    executionUrl: base && id && executionId ? `${base.replace(/\/?$/, '/')}workflow/${id}/executions/${executionId}` : undefined,
    host: hostname(),
    pid: process.pid,
    note: note === '' ? undefined : note,
  };
}

/** What the index by execution needs. */
export function identityOf(context: IExecuteFunctions): Owner {
  return { executionId: context.getExecutionId(), instanceId: context.getInstanceId?.() };
}

/** A lock of this execution. Kept in the execution's own data, so it survives a Wait and a resume in another worker. */
export interface HeldLock extends IDataObject {
  key: string;
  lockId: string;
  fencingToken: number;
  ttlMs: number;
  /** host:port/database: a node with another credential does not see it. */
  server: string;
  /** Names of the Acquire and Steal nodes that took it: each has a hold. */
  holds: string[];
}

const CONTEXT = 'redisLock';

/** What this execution holds in one Redis, as far as it knows. Redis decides. */
export class HeldLocks {
  private readonly store: Record<string, HeldLock>;

  constructor(
    context: IExecuteFunctions,
    private readonly server: string,
  ) {
    const flow = context.getContext('flow') as Record<string, unknown>;
    flow[CONTEXT] ??= {};
    this.store = flow[CONTEXT] as Record<string, HeldLock>;
  }

  all(): HeldLock[] {
    return Object.values(this.store).filter(({ server }) => server === this.server);
  }

  byKey(key: string): HeldLock | undefined {
    return this.all().find((lock) => lock.key === key);
  }

  byId(lockId: string): HeldLock | undefined {
    return this.all().find((lock) => lock.lockId === lockId);
  }

  byNode(node: string): HeldLock[] {
    return this.all().filter(({ holds }) => holds.includes(node));
  }

  add(lock: Omit<HeldLock, 'server' | 'holds'>, hold: string): void {
    const holds = this.store[lock.lockId as string]?.holds ?? [];
    this.store[lock.lockId as string] = {
      ...lock,
      server: this.server,
      holds: holds.includes(hold) ? holds : [...holds, hold],
    } as HeldLock;
  }

  /** One hold was given back, or (no `hold`) the lock is gone. */
  drop(lockId: string, hold?: string): void {
    const lock = this.store[lockId];
    if (!lock) return;
    lock.holds = hold === undefined ? [] : lock.holds.filter((name) => name !== hold);
    if (lock.holds.length === 0) delete this.store[lockId];
  }
}

/** Why a wait ended early; its text goes to the user. */
class Stopped extends Error {}

/**
 * A signal that ends a wait when the execution is stopped or its time is over. n8n gives no signal of the time limit on
 * workers before 2.40 and none to sub-workflows, so the limit is watched here too.
 */
export function stopSignal(context: IExecuteFunctions): { signal: AbortSignal; dispose(): void } {
  // Listeners must not close over the context: the signal lives as long as the execution, with all of its data.
  const own = new AbortController();
  const cancel = context.getExecutionCancelSignal?.();
  const onStop = () => own.abort(new Stopped('The execution was stopped while it waited for a lock.'));
  if (cancel?.aborted) onStop();
  else cancel?.addEventListener('abort', onStop, { once: true });
  const { executionTimeoutTimestamp: limit } =
    (context as unknown as { additionalData?: { executionTimeoutTimestamp?: number } }).additionalData ?? {};
  let timer: NodeJS.Timeout | undefined;
  const onLimit = () => own.abort(new Stopped('The time limit of the execution was reached while it waited for a lock.'));
  if (limit !== undefined && limit - Date.now() < 2 ** 31 - 1) {
    timer = setTimeout(onLimit, Math.max(0, limit - Date.now()));
    timer.unref();
  }
  return {
    signal: own.signal,
    dispose() {
      clearTimeout(timer);
      cancel?.removeEventListener('abort', onStop);
    },
  };
}

export const isStopped = (error: unknown): error is Error => error instanceof Stopped;

/** A note at the node after the run. Missing on old n8n, which does without. */
export function hint(context: IExecuteFunctions, message: string): void {
  context.addExecutionHints?.({ message, type: 'warning', location: 'outputPane' });
}

/** An error that says at which item. */
export function itemError(context: IExecuteFunctions, message: string, itemIndex: number): NodeOperationError {
  const error = new NodeOperationError(context.getNode(), message, { itemIndex });
  // n8n replaces a whole message that has ECONNREFUSED or the like in it by one without host, port and remedy.
  error.message = message;
  return error;
}
