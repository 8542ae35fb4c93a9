import type { IDataObject, IExecuteFunctions, INodeProperties } from 'n8n-workflow';
import { RedisLockError } from '../../../engine';
import type { Redis } from '../connection';
import { itemError } from '../execution';
import type { Care } from '../held';
import { holderField } from '../lockField';
import type { Own } from '../lookAfter';
import { readCare, readKey, readOptions, readSeconds, toMs } from '../parameters';
import { asNodeError, withOuter, type Run } from '../run';
import { take, type Party, type Taken } from '../take';

/** What Acquire and Run Workflow have in common: how a lock is asked for, and what is said of one that was not had. */

export const whenBusyFields: INodeProperties[] = [
  {
    displayName: 'When Busy',
    name: 'whenBusy',
    type: 'options',
    default: 'skip',
    options: [
      { name: 'Take the Busy Output', value: 'skip', description: 'Do not wait: if another execution holds the lock, this one goes on at Busy at once' },
      { name: 'Wait in Line', value: 'wait', description: 'Wait until it is released, first come first served, up to Max Wait' },
    ],
    description: 'What to do when another execution holds the lock',
  },
  {
    displayName: 'Max Wait',
    name: 'maxWait',
    type: 'number',
    typeOptions: { minValue: 0 },
    default: 30,
    displayOptions: { show: { whenBusy: ['wait'] } },
    description: 'Seconds to wait at most; then the item leaves through Timed Out. A waiting execution occupies a place of its worker.',
  },
];

export const onTimeoutField: INodeProperties = {
  displayName: 'On Timeout',
  name: 'onTimeout',
  type: 'options',
  default: 'output',
  options: [
    { name: 'Continue Without the Lock', value: 'continue', description: 'Go on at Acquired, marked lock.protected = false. Only where doing the work twice does no harm.' },
    { name: 'Fail', value: 'error', description: 'End with an error' },
    { name: 'Take the Timed Out Output', value: 'output' },
  ],
  description: 'What to do when Max Wait is over',
};

export const keepPlaceField: INodeProperties = {
  displayName: 'Keep Place in Line',
  name: 'keepPlace',
  type: 'number',
  typeOptions: { minValue: 0 },
  default: 0,
  description:
    'Seconds for which the place in line is kept after Timed Out. For a loop back to this node through a Wait: it goes on waiting where it was, without occupying a worker meanwhile. Longer than that Wait.',
};

export const stealIfStaleField: INodeProperties = {
  displayName: 'Steal If Stale After',
  name: 'stealIfStaleAfter',
  type: 'number',
  typeOptions: { minValue: 0 },
  default: 0,
  description: 'Take the lock over from a holder that sent no Heartbeat for so many seconds. 0: never. Longer than the longest gap between two Heartbeats.',
};

export interface Contending {
  key: string;
  ttlMs: number;
  /** Undefined: do not wait. */
  waitMs?: number;
  onTimeout: string;
  care: Care;
  stealIfStaleMs?: number;
  keepPlaceMs?: number;
}

/** @throws NodeOperationError */
export function readContending(context: IExecuteFunctions, index: number): Contending {
  const options = readOptions(context, index);
  const staleAfter = toMs(context, options.stealIfStaleAfter ?? 0, 'Steal If Stale After', index, { least: 0 });
  const keepPlace = toMs(context, options.keepPlace ?? 0, 'Keep Place in Line', index, { least: 0 });
  const waits = context.getNodeParameter('whenBusy', index, 'skip') === 'wait';
  return {
    key: readKey(context, index),
    ttlMs: readSeconds(context, 'ttl', 'TTL', index, { least: 1 }),
    waitMs: waits ? readSeconds(context, 'maxWait', 'Max Wait', index, { least: 0 }) : undefined,
    onTimeout: (options.onTimeout as string | undefined) ?? 'output',
    care: readCare(context, index),
    stealIfStaleMs: staleAfter > 0 ? staleAfter : undefined,
    keepPlaceMs: waits && keepPlace > 0 ? keepPlace : undefined,
  };
}

export type Answer = Taken | { outcome: 'failed'; error: unknown };

/**
 * Takes the lock of one key.
 * @param started `performance.now()` from which on Max Wait counts
 * @throws RedisLockError when no key can be asked for · the reason of `signal`
 */
export async function contend(
  context: IExecuteFunctions,
  redis: Redis,
  own: Own,
  party: Party,
  { key, ttlMs, waitMs, stealIfStaleMs, keepPlaceMs, care }: Contending,
  started: number,
  signal: AbortSignal,
): Promise<Answer> {
  const left = waitMs === undefined ? undefined : Math.max(0, waitMs - (performance.now() - started));
  try {
    return await take(context, redis, own, party, key, { ttlMs, waitMs: left, stealIfStaleMs, keepPlaceMs, signal }, care);
  } catch (error) {
    // This key can't be a lock: other keys may be. Everything else concerns them all.
    const concernsAll = error instanceof RedisLockError && error.code !== 'wrongType';
    return concernsAll ? await Promise.reject(error) : { outcome: 'failed', error };
  }
}

/** An item whose lock was not had. */
export function settleLoser(run: Run, index: number, { key, onTimeout }: Contending, answer: Exclude<Answer, { outcome: 'acquired' }>): void {
  const { context, results } = run;
  const [outer] = run.open(index);
  if (answer.outcome === 'failed') return results.fail(index, asNodeError(context, answer.error, index));
  const timedOut = answer.outcome === 'timedOut';
  const lock: IDataObject = {
    acquired: false,
    key,
    reason: timedOut ? 'timedOut' : answer.reason,
    queueLength: answer.queue,
    ...(timedOut ? { waitedMs: answer.waitedMs } : {}),
    holder: holderField(answer.holders[0]),
  };
  if (!timedOut) results.put(index, 'Busy', withOuter(lock, outer));
  else if (onTimeout === 'continue') results.put(index, 'Acquired', withOuter({ ...lock, protected: false }, outer));
  else if (onTimeout === 'error') results.fail(index, itemError(context, timeoutMessage(key, answer), index));
  else results.put(index, 'Timed Out', withOuter(lock, outer));
}

function timeoutMessage(key: string, { waitedMs, holders }: Extract<Answer, { outcome: 'timedOut' }>): string {
  const holder = holders[0];
  const who =
    holder && !('foreign' in holder) && holder.owner.executionId
      ? ` Execution ${holder.owner.executionId} of "${holder.owner.workflowName}" holds it.`
      : '';
  return `The lock "${key}" was not free within ${Math.round(waitedMs / 1000)} s (Max Wait).${who} Wait longer, or look at that execution.`;
}
