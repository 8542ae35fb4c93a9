import type { IDataObject, IExecuteFunctions, INodeProperties } from 'n8n-workflow';
import { RedisLockError } from '../../../engine';
import type { Redis } from '../connection';
import { itemError } from '../execution';
import type { Care } from '../held';
import { holderField, person } from '../lockField';
import type { Own } from '../lookAfter';
import { readKeys } from '../keyParameter';
import { readCare, readOptions, readSeconds, show, toMs } from '../parameters';
import { asNodeError, withOuter, type Run } from '../run';
import { take, takeSeveral, type Party, type Taken } from '../take';

const MOST_HOLDERS = 1000;

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

export const permitFieldsOfAcquire: INodeProperties[] = [
  {
    displayName: 'Max Holders',
    name: 'maxHolders',
    type: 'number',
    typeOptions: { minValue: 1, maxValue: MOST_HOLDERS },
    default: 1,
    description: 'How many executions may hold the lock at once, for example for the calls that an API takes in parallel. Nodes that share a key should have the same number here; of different ones the smallest counts.',
  },
  {
    displayName: 'Mode',
    name: 'mode',
    type: 'options',
    default: 'exclusive',
    options: [
      { name: 'Exclusive', value: 'exclusive', description: 'Nobody else holds the lock at the same time' },
      { name: 'Shared', value: 'shared', description: 'Others that hold it shared are let in too, an exclusive one is not: for those who only read' },
    ],
    description: 'Whether others may hold the lock at the same time',
  },
];

export const policyFields: INodeProperties[] = [
  {
    displayName: 'Settle At Most',
    name: 'settleAtMost',
    type: 'number',
    typeOptions: { minValue: 0 },
    default: 0,
    description: 'Seconds after the first of a burst at which the newest enters although newer ones keep coming. 0: never.',
  },
  {
    displayName: 'Settle Time',
    name: 'settleTime',
    type: 'number',
    typeOptions: { minValue: 0 },
    default: 0,
    description: 'With Only the Newest: enter only when nothing newer has come for so many seconds, also where the lock is free. Shorter than Max Wait.',
  },
  {
    displayName: 'Waiting',
    name: 'waitingPolicy',
    type: 'options',
    default: 'turn',
    options: [
      { name: 'Everyone in Turn', value: 'turn', description: 'First come, first served' },
      { name: 'Only the Newest', value: 'newest', description: 'A later one sends earlier ones that wait with this option out through Busy, with lock.reason = superseded. For updates of which only the last matters.' },
    ],
    description: 'Who is served of those that wait in line',
  },
];

export interface Contending {
  /** Several: in the order of their bytes. */
  keys: string[];
  /** What stands for them: requests with the same are about the same lock. */
  key: string;
  ttlMs: number;
  /** Undefined: do not wait. */
  waitMs?: number;
  onTimeout: string;
  care: Care;
  stealIfStaleMs?: number;
  keepPlaceMs?: number;
  limit?: number;
  shared: boolean;
  /** Only the newest of those that wait is served. */
  newest?: { settleMs?: number; settleAtMostMs?: number };
}

const inSeconds = (ms: number | undefined) => (ms === undefined ? 'none' : `${ms / 1000} s`);
/** What equal keys of one run must have in common: one lock can't have two leases. */
export const TERMS: Array<[string, (request: Contending) => string]> = [
  ['TTL', ({ ttlMs }) => inSeconds(ttlMs)],
  ['Max Holders', ({ limit }) => String(limit ?? 1)],
  ['Mode', ({ shared }) => (shared ? 'Shared' : 'Exclusive')],
  ['Remembered as Done For', ({ care }) => inSeconds(care.rememberMs)],
];

/** Where nobody may go on without the lock. */
export function withoutContinue(field: INodeProperties): INodeProperties {
  return { ...field, options: field.options?.filter((option) => !('value' in option) || option.value !== 'continue') };
}

const ON_TIMEOUT = ['output', 'error', 'continue'];

/** @param keys those of the item, unless told otherwise @param mayContinue without the lock, where that is chosen @throws NodeOperationError */
export function readContending(context: IExecuteFunctions, index: number, { keys = readKeys(context, index), mayContinue = false }: { keys?: string[]; mayContinue?: boolean } = {}): Contending {
  const options = readOptions(context, index);
  const { onTimeout = 'output' } = options;
  if (typeof onTimeout !== 'string' || !ON_TIMEOUT.includes(onTimeout) || (onTimeout === 'continue' && !mayContinue)) {
    throw itemError(context, `On Timeout (item ${index}) is ${show(onTimeout)}, which ${mayContinue ? 'this version' : 'this operation'} does not know. Choose one from the list.`, index);
  }
  const staleAfter = toMs(context, options.stealIfStaleAfter ?? 0, 'Steal If Stale After', index, { least: 0 });
  const keepPlace = toMs(context, options.keepPlace ?? 0, 'Keep Place in Line', index, { least: 0 });
  const waits = context.getNodeParameter('whenBusy', index, 'skip') === 'wait';
  const waitMs = waits ? readSeconds(context, 'maxWait', 'Max Wait', index, { least: 0 }) : undefined;
  const contending: Contending = {
    keys,
    key: keys.join('\n'),
    ttlMs: readSeconds(context, 'ttl', 'TTL', index, { least: 1 }),
    waitMs,
    ...readPermits(context, options, index),
    newest: readNewest(context, options, waitMs, index),
    onTimeout,
    care: readCare(context, index),
    stealIfStaleMs: staleAfter > 0 ? staleAfter : undefined,
    keepPlaceMs: waits && keepPlace > 0 ? keepPlace : undefined,
  };
  if (keys.length > 1) refuseForSeveral(context, contending, index);
  return contending;
}

/** Several keys are exclusive, and waited for in turn. */
function refuseForSeveral(context: IExecuteFunctions, { keys, limit = 1, shared, newest, keepPlaceMs, stealIfStaleMs }: Contending, index: number): void {
  const options: Array<[string, boolean]> = [
    ['Mode: Shared', shared],
    ['Max Holders', limit > 1],
    ['Waiting: Only the Newest', newest !== undefined],
    ['Keep Place in Line', keepPlaceMs !== undefined],
    ['Steal If Stale After', stealIfStaleMs !== undefined],
  ];
  const option = options.find(([, isChosen]) => isChosen)?.[0];
  if (option === undefined) return;
  throw itemError(context, `Key (item ${index}) is a list of ${keys.length} keys, which does not go together with ${option}. Remove that option, or take one key.`, index);
}

function readPermits(context: IExecuteFunctions, { maxHolders = 1, mode = 'exclusive' }: IDataObject, index: number): Pick<Contending, 'limit' | 'shared'> {
  const limit = Number(maxHolders);
  if (!Number.isInteger(limit) || limit < 1 || limit > MOST_HOLDERS || maxHolders === '' || typeof maxHolders === 'boolean') {
    throw itemError(context, `Max Holders (item ${index}) must be a whole number from 1 to ${MOST_HOLDERS}, not ${show(maxHolders)}.`, index);
  }
  if (mode !== 'exclusive' && mode !== 'shared') {
    throw itemError(context, `Mode (item ${index}) is ${show(mode)}, which this version does not know. Choose one from the list.`, index);
  }
  if (mode === 'exclusive') return { limit, shared: false };
  if (limit > 1) {
    throw itemError(context, `Mode (item ${index}) is Shared, which lets in any number, so it can't go together with Max Holders ${limit}. Remove one of the two.`, index);
  }
  return { shared: true };
}

function readNewest(context: IExecuteFunctions, options: IDataObject, waitMs: number | undefined, index: number): Contending['newest'] {
  const { waitingPolicy = 'turn' } = options;
  const settleMs = toMs(context, options.settleTime ?? 0, 'Settle Time', index, { least: 0 });
  const settleAtMostMs = toMs(context, options.settleAtMost ?? 0, 'Settle At Most', index, { least: 0 });
  const refuse = (problem: string) => itemError(context, problem.replace('#', `(item ${index})`), index);
  if (waitingPolicy !== 'turn' && waitingPolicy !== 'newest') {
    throw refuse(`Waiting # is ${show(waitingPolicy)}, which this version does not know. Choose one from the list.`);
  }
  if (waitingPolicy === 'turn') {
    if (settleMs > 0 || settleAtMostMs > 0) throw refuse('Settle Time # is for Waiting: Only the Newest. Choose that, or remove Settle Time and Settle At Most.');
    return undefined;
  }
  if (waitMs === undefined) throw refuse('Waiting # is Only the Newest, but When Busy does not wait. Choose When Busy: Wait in Line.');
  if (settleMs >= waitMs && settleMs > 0) throw refuse(`Settle Time # must be shorter than Max Wait (${waitMs / 1000} s): else every item times out. Wait longer.`);
  if (settleAtMostMs > 0 && settleMs === 0) throw refuse('Settle At Most # needs a Settle Time. Set one, or remove it.');
  if (settleAtMostMs > 0 && settleAtMostMs < settleMs) throw refuse(`Settle At Most # must not be shorter than Settle Time (${settleMs / 1000} s).`);
  return { ...(settleMs > 0 && { settleMs }), ...(settleAtMostMs > 0 && { settleAtMostMs }) };
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
  { keys, ttlMs, waitMs, stealIfStaleMs, keepPlaceMs, limit, shared, newest, care }: Contending,
  started: number,
  signal: AbortSignal,
): Promise<Answer> {
  const left = waitMs === undefined ? undefined : Math.max(0, waitMs - (performance.now() - started));
  try {
    const terms = { ...(shared ? { mode: 'shared' as const } : { limit }), ...(newest && { waiting: 'newest' as const, ...newest }) };
    const [key] = keys as [string];
    if (keys.length > 1) return await takeSeveral(context, redis, own, party, keys, { ttlMs, waitMs: left, signal }, care);
    return await take(context, redis, own, party, key, { ttlMs, waitMs: left, stealIfStaleMs, keepPlaceMs, signal, ...terms }, care);
  } catch (error) {
    // This key can't be a lock: other keys may be. Everything else concerns them all.
    const concernsAll = error instanceof RedisLockError && error.code !== 'wrongType';
    return concernsAll ? await Promise.reject(error) : { outcome: 'failed', error };
  }
}

/** An item whose lock was not had. */
export function settleLoser(run: Run, index: number, { keys, onTimeout }: Contending, answer: Exclude<Answer, { outcome: 'acquired' | 'doneBefore' }>): void {
  const { context, results } = run;
  const [outer] = run.open(index);
  if (answer.outcome === 'failed') return results.fail(index, asNodeError(context, answer.error, index));
  const timedOut = answer.outcome === 'timedOut';
  // Of several, the one that was in the way.
  const key = answer.key ?? String(keys[0]);
  const lock: IDataObject = {
    acquired: false,
    key,
    ...(keys.length > 1 ? { keys } : {}),
    reason: timedOut ? 'timedOut' : answer.reason,
    queueLength: answer.queue,
    ...(timedOut ? { waitedMs: answer.waitedMs } : {}),
    holder: holderField(answer.holders[0]),
    ...(!timedOut && answer.newer ? { supersededBy: person(answer.newer) } : {}),
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
