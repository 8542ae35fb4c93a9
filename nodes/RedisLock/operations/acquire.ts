import type { IDataObject, INodeProperties } from 'n8n-workflow';
import type { Locks } from '../../../engine';
import type { Redis } from '../connection';
import { hint, itemError, stopSignal } from '../execution';
import { acquiredFields, doneField, holderField, permitFields, person, type CarriedLock } from '../lockField';
import type { Own } from '../lookAfter';
import { byName, careFields, keysField, noteField, optionsField, outputField, readIsForCaller, ttlField } from '../parameters';
import { asNodeError, groupByKey, withOuter, type OperationModule, type Run } from '../run';
import { partyFields, partyOf, refuseLockForNobody, undo, warnOfCare, type Entry, type Party } from '../take';
import { contend, keepPlaceField, onTimeoutField, permitFieldsOfAcquire, policyFields, readContending, settleLoser, stealIfStaleField, TERMS, whenBusyFields, type Answer, type Contending } from './contend';

export const description: INodeProperties[] = [
  keysField,
  ttlField,
  ...whenBusyFields,
  {
    displayName:
      '<b>Acquired</b>: this execution holds the lock; do the work here, and release at its end. <b>Busy</b>: another execution holds it; leave it empty to simply end, and never touch the lock there.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField(byName([...careFields, keepPlaceField, noteField, onTimeoutField, outputField, ...permitFieldsOfAcquire, ...policyFields, stealIfStaleField])),
];

export interface Request extends Contending {
  forCaller: boolean;
  /** There is nothing to lock by, and the item goes on without. */
  unprotected?: boolean;
}

export const acquire: OperationModule<Request> = { description, read, execute };

function read({ context }: Run, index: number): Request {
  return { ...readContending(context, index, { mayContinue: true }), forCaller: readIsForCaller(context, index) };
}

export async function execute(run: Run, requests: Map<number, Request>, redis: Redis, own: Own): Promise<void> {
  const { context, results } = run;
  letPass(run, requests);
  const groups = groupByKey(requests);
  for (const [, members] of groups) refuseUnequal(run, members);
  refuseLists(run, groups);
  const parties = new Map<string, Party>();
  // Before the first lock is taken.
  for (const [key, members] of groups) {
    for (const [index, request] of members) if (!results.has(index)) prepare(run, redis, own, parties, key, index, request);
  }

  const stop = stopSignal(context);
  const started = performance.now();
  // What this run was granted: if it fails as a whole, nobody would ever use or release these.
  const granted: Array<{ entry: Entry; party: Party }> = [];
  let done = false;
  try {
    for (const [key, members] of groups) {
      const party = parties.get(key);
      const first = members.find(([index]) => !results.has(index));
      if (!first || !party) continue;
      const answer = await contend(context, redis, own, party, first[1], started, stop.signal);
      const permits = answer.outcome === 'acquired' ? await permitsOf(redis.locks, first[1]) : {};
      if (answer.outcome === 'failed' && stop.signal.aborted) throw answer.error;
      if (answer.outcome === 'acquired' && !answer.again) granted.push({ entry: answer, party });
      for (const [index, request] of members) {
        if (results.has(index)) continue;
        // What is to be done once is the first item's to do.
        if (answer.outcome === 'acquired' && request.care.rememberMs !== undefined && index !== first[0]) putDuplicate(run, index, request, party);
        else settle(run, index, request, answer, party, permits);
      }
    }
    // Stopped as the answer came: nobody would use what was granted.
    stop.signal.throwIfAborted();
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

function settle(run: Run, index: number, request: Request, answer: Answer, party: Party, permits: IDataObject): void {
  const { key, care } = request;
  const { context, results } = run;
  const node = context.getNode().name;
  const [outer] = run.open(index);
  if (answer.outcome === 'failed') {
    results.fail(index, asNodeError(context, answer.error, index));
  } else if (answer.outcome === 'acquired') {
    const { lockId, locks } = answer;
    const lock = { ...acquiredFields(lockId, locks), acquiredBy: node, ...partyFields(party), ...permits, ...grantFields(answer), ...(care.rememberMs ? { rememberDoneSeconds: care.rememberMs / 1000 } : {}) };
    results.put(index, 'Acquired', withOuter(lock, sameLock(outer, lockId, node)));
  } else if (answer.outcome === 'doneBefore') {
    results.put(index, 'Done Before', withOuter({ acquired: false, key, reason: 'doneBefore', done: doneField(answer.done) }, outer));
  } else {
    settleLoser(run, index, request, answer);
  }
}

/**
 * Several keys, and others beside them: waiting for one list while another is held could be waiting for an execution that does
 * the same the other way round.
 */
function refuseLists({ context, results }: Run, groups: Array<[string, Array<[number, Request]>]>): void {
  const all = groups.flatMap(([, members]) => members);
  if (groups.length < 2 || !all.some(([, { waitMs }]) => waitMs !== undefined)) return;
  for (const [index, { keys }] of all) {
    if (keys.length < 2 || results.has(index)) continue;
    results.fail(
      index,
      itemError(context, `Key (item ${index}) is a list, and other items of this run have other keys: two executions could wait for each other. Put the node into a Loop Over Items with batches of one, or choose When Busy: Take the Busy Output.`, index),
    );
  }
}

/** Without a key, where that was chosen: on as if there were no lock. */
function letPass(run: Run, requests: Map<number, Request>): void {
  for (const [index, { unprotected }] of [...requests]) {
    if (!unprotected) continue;
    requests.delete(index);
    run.results.put(index, 'Acquired', withOuter({ acquired: false, protected: false, deduplicated: false, reason: 'keyMissing' }, run.open(index)[0]));
  }
}

/** Two items of one run are the same thing: another item of this execution does it. */
function putDuplicate(run: Run, index: number, { key }: Request, { owner }: Party): void {
  run.results.put(index, 'Busy', withOuter({ acquired: false, key, reason: 'ownExecution', queueLength: 0, holder: person(owner) }, run.open(index)[0]));
}

/** How many hold it, where more than one may. Asked for by itself: it costs nobody who wants a mutex. */
async function permitsOf(locks: Locks, { key, limit, shared }: Request): Promise<IDataObject> {
  if (!shared && limit === 1) return {};
  // The lock is there whether this is known or not.
  const status = await locks.status(key).catch(() => undefined);
  return status ? permitFields(status.holders, status.holderCount, limit) : shared ? { mode: 'shared' } : {};
}

function grantFields({ again, locks }: Entry): IDataObject {
  const robbed = locks[0]?.grant.robbed;
  return { ...(again ? { reentrant: true } : {}), ...(robbed ? { previousHolder: holderField(robbed) } : {}) };
}

/** The same node taking the same lock again (a loop, a retry) is the same hold: it does not nest in itself. */
function sameLock(outer: CarriedLock | undefined, lockId: string, node: string): CarriedLock | undefined {
  return outer?.lockId === lockId && outer.acquiredBy === node ? outer.outer : outer;
}

function refuseUnequal({ context, results }: Run, members: Array<[number, Request]>): void {
  const [first] = members;
  if (!first) return;
  for (const [index, request] of members) {
    const differs = TERMS.find(([, of]) => of(request) !== of(first[1]));
    if (!differs) continue;
    const [label, of] = differs;
    const message = `${label} (item ${index}) is ${of(request)}, but item ${first[0]} asks for the same key "${request.key}" with ${of(first[1])}. Give equal keys the same ${label}.`;
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
