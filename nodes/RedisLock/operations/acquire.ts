import type { IDataObject, INodeProperties } from 'n8n-workflow';
import { RedisLockError, type Lock } from '../../../engine';
import type { Redis } from '../connection';
import { hint, itemError, stopSignal } from '../execution';
import type { Care } from '../held';
import { expiryFields, holderField, type CarriedLock } from '../lockField';
import type { Own } from '../lookAfter';
import { careFields, keyField, noteField, optionsField, outputField, readCare, readIsForCaller, readKey, readOptions, readSeconds, toMs, ttlField } from '../parameters';
import { asNodeError, groupByKey, withOuter, type OperationModule, type Run } from '../run';
import { partyFields, partyOf, refuseLockForNobody, take, undo, warnOfCare, type Party, type Taken } from '../take';

export const description: INodeProperties[] = [
  keyField,
  ttlField,
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
  {
    displayName:
      '<b>Acquired</b>: this execution holds the lock; do the work here, and release at its end. <b>Busy</b>: another execution holds it; leave it empty to simply end, and never touch the lock there.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField([
    ...careFields,
    noteField,
    {
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
    },
    outputField,
    {
      displayName: 'Steal If Stale After',
      name: 'stealIfStaleAfter',
      type: 'number',
      typeOptions: { minValue: 0 },
      default: 0,
      description: 'Take the lock over from a holder that sent no Heartbeat for so many seconds. 0: never. Longer than the longest gap between two Heartbeats.',
    },
  ]),
];

interface Request {
  key: string;
  ttlMs: number;
  /** Undefined: do not wait. */
  waitMs?: number;
  onTimeout: string;
  care: Care;
  forCaller: boolean;
  stealIfStaleMs?: number;
}

export const acquire: OperationModule<Request> = { description, read, execute };

function read({ context }: Run, index: number): Request {
  const options = readOptions(context, index);
  const staleAfter = toMs(context, options.stealIfStaleAfter ?? 0, 'Steal If Stale After', index, { least: 0 });
  return {
    key: readKey(context, index),
    ttlMs: readSeconds(context, 'ttl', 'TTL', index, { least: 1 }),
    waitMs:
      context.getNodeParameter('whenBusy', index, 'skip') === 'wait'
        ? readSeconds(context, 'maxWait', 'Max Wait', index, { least: 0 })
        : undefined,
    onTimeout: (options.onTimeout as string | undefined) ?? 'output',
    care: readCare(context, index),
    forCaller: readIsForCaller(context, index),
    stealIfStaleMs: staleAfter > 0 ? staleAfter : undefined,
  };
}

async function execute(run: Run, requests: Map<number, Request>, redis: Redis, own: Own): Promise<void> {
  const { context, results } = run;
  const groups = groupByKey(requests);
  for (const [, members] of groups) refuseUnequal(run, members);
  const parties = new Map<string, Party>();
  // Before the first lock is taken.
  for (const [key, members] of groups) {
    for (const [index, request] of members) if (!results.has(index)) prepare(run, redis, own, parties, key, index, request);
  }

  const stop = stopSignal(context);
  const started = performance.now();
  // What this run was granted: if it fails as a whole, nobody would ever use or release these.
  const granted: Array<{ lock: Lock; party: Party }> = [];
  let done = false;
  try {
    for (const [key, members] of groups) {
      const party = parties.get(key);
      const first = members.find(([index]) => !results.has(index));
      if (!first || !party) continue;
      const [, { ttlMs, waitMs, stealIfStaleMs, care }] = first;
      const answer = await take(context, redis, own, party, key, {
        ttlMs,
        waitMs: waitMs === undefined ? undefined : Math.max(0, waitMs - (performance.now() - started)),
        stealIfStaleMs,
        signal: stop.signal,
      }, care).catch((error: unknown) => {
        // This key can't be a lock: other keys may be. Everything else concerns them all.
        if (!(error instanceof RedisLockError) || error.code === 'wrongType') return { outcome: 'failed' as const, error };
        return Promise.reject(error);
      });
      if (answer.outcome === 'failed' && stop.signal.aborted) throw answer.error;
      if (answer.outcome === 'acquired' && !answer.lock.grant.again) granted.push({ lock: answer.lock, party });
      for (const [index, request] of members) if (!results.has(index)) settle(run, index, request, answer, party);
    }
    done = true;
  } finally {
    stop.dispose();
    if (!done) {
      for (const [index] of requests) results.forget(index);
      await undo(granted);
    }
  }
  warn(run, requests, own);
}

/** For whom the lock of that key is taken; an item that may not have it fails. */
function prepare({ context, results }: Run, redis: Redis, own: Own, parties: Map<string, Party>, key: string, index: number, { care, forCaller }: Request): void {
  try {
    const party = parties.get(key) ?? partyOf(context, redis, own, forCaller, care.note, index);
    refuseLockForNobody(context, party, care, index);
    parties.set(key, party);
  } catch (error) {
    results.fail(index, asNodeError(context, error, index));
  }
}

type Answer = Taken | { outcome: 'failed'; error: unknown };

function settle(run: Run, index: number, { key, onTimeout }: Request, answer: Answer, party: Party): void {
  const { context, results } = run;
  const node = context.getNode().name;
  const [outer] = run.open(index);
  if (answer.outcome === 'failed') {
    results.fail(index, asNodeError(context, answer.error, index));
  } else if (answer.outcome === 'acquired') {
    const { lockId, fencingToken, grant } = answer.lock;
    const lock: IDataObject = {
      acquired: true,
      key,
      lockId,
      fencingToken,
      ...expiryFields(grant.ttlMs, grant.expiresAt),
      waitedMs: grant.waitedMs,
      queueLength: grant.queue,
      acquiredBy: node,
      ...partyFields(party),
      ...(grant.again ? { reentrant: true } : {}),
      ...(grant.robbed ? { previousHolder: holderField(grant.robbed) } : {}),
    };
    results.put(index, 'Acquired', withOuter(lock, sameLock(outer, lockId, node)));
  } else {
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
}

/** The same node taking the same lock again (a loop, a retry) is the same hold: it does not nest in itself. */
function sameLock(outer: CarriedLock | undefined, lockId: string, node: string): CarriedLock | undefined {
  return outer?.lockId === lockId && outer.acquiredBy === node ? outer.outer : outer;
}

function timeoutMessage(key: string, { waitedMs, holders }: Extract<Answer, { outcome: 'timedOut' }>): string {
  const holder = holders[0];
  const who =
    holder && !('foreign' in holder) && holder.owner.executionId
      ? ` Execution ${holder.owner.executionId} of "${holder.owner.workflowName}" holds it.`
      : '';
  return `The lock "${key}" was not free within ${Math.round(waitedMs / 1000)} s (Max Wait).${who} Wait longer, or look at that execution.`;
}

/** One lock can't have two leases. */
function refuseUnequal({ context, results }: Run, members: Array<[number, Request]>): void {
  const [first] = members;
  for (const [index, { key, ttlMs }] of members) {
    if (!first || ttlMs === first[1].ttlMs) continue;
    const message = `TTL (item ${index}) is ${ttlMs / 1000} s, but item ${first[0]} asks for the same key "${key}" with ${first[1].ttlMs / 1000} s. Give equal keys the same TTL.`;
    results.fail(index, itemError(context, message, index));
  }
}

function warn({ context }: Run, requests: Map<number, Request>, own: Own): void {
  const executionId = context.getExecutionId();
  if ([...requests.values()].some(({ key }) => key === executionId)) {
    hint(context, 'The key is the execution ID, so every execution has a lock of its own and none excludes another. Use the ID of the thing that is protected.');
  }
  const [first] = requests.values();
  const locks = own.held.byNode(context.getNode().name);
  if (first && locks.length > 0) warnOfCare(context, own, first.care);
  if (locks.length > 100) {
    hint(context, `This execution holds ${locks.length} locks of this node. Release each inside the loop, where its work is done.`);
  }
}
