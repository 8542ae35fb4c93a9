import { NodeOperationError, type IDataObject, type IExecuteFunctions, type INodeExecutionData, type INodeProperties } from 'n8n-workflow';
import { LockOptionError, RedisLockError } from '../../engine';
import type { Redis } from './connection';
import { withLocks } from './connection';
import { identityOf, isStopped, itemError, workflowLimitMs } from './execution';
import type { HeldLock } from './held';
import { THIS_PROCESS } from './keepAlive';
import { carried, membersOf, openLocks, type CarriedLock } from './lockField';
import { lookAfter, type Own } from './lookAfter';
import { Results, type Operation, type Shield } from './outputs';
import { readOutputField } from './parameters';

/** What an operation gets to work with, and how one run of the node goes. */

export interface OperationModule<Request> {
  /** Its parameters. */
  description: INodeProperties[];
  /** Reads and checks the parameters of one item. @throws NodeOperationError */
  read(run: Run, index: number): Request;
  /** Asks Redis, and puts a result for every item into `run.results`. */
  execute(run: Run, requests: Map<number, Request>, redis: Redis, own: Own): Promise<void>;
}

export interface Run {
  context: IExecuteFunctions;
  items: INodeExecutionData[];
  results: Results;
  /** The locks that an item carries and that were not released, innermost first. */
  open(index: number): CarriedLock[];
  /** Name of the output field of an item. */
  field(index: number): string;
  /** What the last lock node said of an item. */
  last(index: number): CarriedLock | undefined;
}

/** Runs an operation over all input items. @throws NodeOperationError unless a Continue setting is on */
export async function runOperation<Request>(
  context: IExecuteFunctions,
  operation: Operation,
  module: OperationModule<Request>,
  { settings, refusal }: Shield,
): Promise<Results> {
  const items = context.getInputData();
  const fields = new Map<number, string>();
  const results = new Results(operation, items, settings, (index) => fields.get(index) ?? 'lock');
  const run: Run = {
    context,
    items,
    results,
    open: (index) => openLocks(run.last(index)),
    field: (index) => fields.get(index) ?? 'lock',
    last(index) {
      const lock = carried(items[index], run.field(index));
      return lock === 'foreign' ? undefined : lock;
    },
  };

  const requests = new Map<number, Request>();
  items.forEach((item, index) => {
    if (refusal) return results.fail(index, refusal);
    try {
      const field = readOutputField(context, index);
      if (carried(item, field) === 'foreign') throw fieldTaken(context, field, index);
      fields.set(index, field);
      requests.set(index, module.read(run, index));
    } catch (error) {
      results.fail(index, asNodeError(context, error, index));
    }
  });
  if (requests.size === 0) return results;

  try {
    await withLocks(context, async (redis) => {
      const own = await lookAfter(context, redis);
      for (const index of requests.keys()) receive(run, index, own);
      failIfLost(run, requests, own);
      if (requests.size > 0) await module.execute(run, requests, redis, own);
    });
  } catch (error) {
    // Whoever was stopped gets no items at all: nothing behind this node may run.
    if (isStopped(error)) throw asNodeError(context, error, 0);
    for (const index of requests.keys()) if (!results.has(index)) results.fail(index, asNodeError(context, error, index));
  }
  return results;
}

const DAY_MS = 86_400_000;

/** A sub-workflow took a lock for this execution: from here on it is looked after like one of its own. */
function receive(run: Run, index: number, { held, told }: Own): void {
  const { executionId } = identityOf(run.context);
  const received = run.open(index).filter(({ hold, heldFor }) => hold && heldFor === executionId);
  const locks = received.flatMap((lock) => membersOf(lock).map((member) => ({ ...lock, ...member, group: lock.locks ? lock.lockId : undefined })));
  for (const { key, lockId, hold = '', group, fencingToken = 0, ttlSeconds = 0, mode, rememberDoneSeconds } of locks) {
    if (!lockId || held.byId(lockId)) continue;
    held.add({
      key, lockId, fencingToken, ...(group !== undefined && { group }), ttlMs: ttlSeconds * 1000, executionId, process: THIS_PROCESS, note: '',
      keepAlive: told !== 'not', releaseOnEnd: 'always', stopGraceMs: 30_000, stopWhenLost: false,
      holdUntil: Date.now() + (workflowLimitMs(run.context) ?? DAY_MS),
      ...(mode === 'shared' && { shared: true }),
      ...(rememberDoneSeconds && { rememberMs: rememberDoneSeconds * 1000 }),
    }, hold);
  }
}

/** Stop the Execution When Lost: said once, so that what follows an error can still clean up. */
function failIfLost({ context, results }: Run, requests: Map<number, unknown>, { held }: Own): void {
  const lost = held.all().filter((lock) => lock.lost !== undefined && lock.stopWhenLost && !lock.lostWasTold);
  const [first] = lost;
  if (!first) return;
  for (const lock of lost) lock.lostWasTold = true;
  for (const index of [...requests.keys()]) {
    // Ends the run here, unless a Continue setting is on.
    results.fail(index, itemError(context, lossMessage(first), index));
    requests.delete(index);
  }
}

const lossMessage = ({ key, lost }: HeldLock) =>
  `The lock "${key}" was lost while this execution ran (${String(lost)}), so somebody else may be working on the same thing. What was done since is not protected: check it, and see Get Status for who has the lock now.`;

function fieldTaken(context: IExecuteFunctions, field: string, index: number): NodeOperationError {
  return itemError(
    context,
    `Output Field (item ${index}): the item has a field "${field}" already, which is not from Redis Lock. Choose another name under Options, Output Field.`,
    index,
  );
}

/** An error that names the item, with the remedy in its message: under Continue the message is all that is left. */
export function asNodeError(context: IExecuteFunctions, error: unknown, index: number): NodeOperationError {
  if (error instanceof NodeOperationError) return error;
  if (error instanceof LockOptionError) {
    const label = error.option.charAt(0).toUpperCase() + error.option.slice(1);
    return itemError(context, `${label} (item ${index}) ${error.message.replace(/^\w+: /, '')}.`, index);
  }
  if (error instanceof RedisLockError) {
    return itemError(context, error.message, index);
  }
  return itemError(context, error instanceof Error ? error.message : String(error), index);
}

/** The items of each distinct value, keys in byte order: two runs that take several locks never wait for each other. */
export function groupByKey<T extends { key: string }>(requests: Map<number, T>): Array<[string, Array<[number, T]>]> {
  const groups = new Map<string, Array<[number, T]>>();
  for (const [index, request] of requests) {
    const group = groups.get(request.key);
    if (group) group.push([index, request]);
    else groups.set(request.key, [[index, request]]);
  }
  return [...groups].sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
}

/** A lock on an item that carries another one already: nested sections close in order. */
export const withOuter = (lock: IDataObject, outer: CarriedLock | undefined): IDataObject => (outer ? { ...lock, outer } : lock);
