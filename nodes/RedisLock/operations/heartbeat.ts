import type { IDataObject, INodeProperties } from 'n8n-workflow';
import type { Alive, Locks, Lost, Owner } from '../../../engine';
import type { Redis } from '../connection';
import { identityOf } from '../execution';
import type { HeldLocks } from '../held';
import { renewEveryMs } from '../keepAlive';
import { lossFields, expiryFields } from '../lockField';
import type { Own } from '../lookAfter';
import { callerField, optionsField, outputField, readIsForCaller, readSeconds, targetFields } from '../parameters';
import { type OperationModule, type Run } from '../run';
import { OncePerLock, chooseAll, fromItem, readTarget, whole, type Chosen, type Target } from './targets';

export const description: INodeProperties[] = [
  ...targetFields('Renew', 'Renew everything that this execution holds; if it holds nothing, what the incoming item carries'),
  {
    displayName: 'TTL',
    name: 'ttl',
    type: 'number',
    typeOptions: { minValue: 0 },
    default: 0,
    description: 'Seconds from now until the lock frees itself. 0: as it was acquired.',
  },
  {
    displayName:
      '<b>Alive</b>: the lock is still this execution\'s. <b>Lost</b>: it is not any more, so stop the work here; <code>lock.reason</code> and <code>lock.holder</code> say why and who has it.',
    name: 'outputsNotice',
    type: 'notice',
    default: '',
  },
  optionsField([outputField, callerField]),
];

interface Request {
  target: Target;
  /** Of the locks of the execution that called this one. */
  forCaller: boolean;
  ttlMs?: number;
}

export const heartbeat: OperationModule<Request> = { description, read, execute };

function read(run: Run, index: number): Request {
  const ttlMs = readSeconds(run.context, 'ttl', 'TTL', index, { least: 0 });
  return { target: readTarget(run, index), forCaller: readIsForCaller(run.context, index), ttlMs: ttlMs > 0 ? Math.max(1000, ttlMs) : undefined };
}

async function execute(run: Run, requests: Map<number, Request>, redis: Redis, { held }: Own): Promise<void> {
  const { locks } = redis;
  const owner = identityOf(run.context);
  // One call for each lock and TTL.
  const calls = new Map<number | undefined, OncePerLock<Alive | Lost>>();
  const ask = (ttlMs: number | undefined, chosen: Chosen) => {
    let once = calls.get(ttlMs);
    if (!once) {
      // A lost one stays on the list: a later Release shall say so too, and who has it.
      once = new OncePerLock((lock) => renew(locks, held, owner, lock, ttlMs));
      calls.set(ttlMs, once);
    }
    return once.get(whole(chosen));
  };

  const plan = await chooseAll(run, requests, redis, held, (index) => chooseToRenew(run, index, held));
  for (const [index, { ttlMs }, chosen = []] of plan) {
    const answers = await Promise.all(chosen.map(async (lock) => ({ lock, result: await ask(ttlMs, lock) })));
    settle(run, index, answers, held);
  }
}

function chooseToRenew(run: Run, index: number, held: HeldLocks): Chosen[] {
  const own = held.all().map(whole);
  if (own.length > 0) return own;
  return run
    .open(index)
    .filter(({ lockId }) => lockId !== undefined)
    .flatMap((lock) => fromItem(lock, held));
}

async function renew(locks: Locks, held: HeldLocks, owner: Owner, lock: Chosen, ttlMs = lock.ttlMs): Promise<Alive | Lost> {
  const { key, lockId, fencingToken } = lock;
  const known = held.byId(lockId);
  const announced = known?.keepAlive && ttlMs !== undefined ? { renewEveryMs: renewEveryMs(ttlMs) } : {};
  const beat = await locks.resume(key, { lockId, fencingToken, owner }).heartbeat(ttlMs, announced);
  if (known && beat.outcome === 'alive') held.add({ ...known, ttlMs: beat.ttlMs }, known.holds[0] ?? '');
  return beat;
}

const OWN_FIELDS = ['alive', 'renewed', 'revived', 'keyTtlShortened', 'reason', 'holder', 'takenOverBy'];

function settle(run: Run, index: number, answers: Array<{ lock: Chosen; result: Alive | Lost }>, held: HeldLocks): void {
  // What the item carries goes on, with what is new instead of what an earlier Heartbeat said.
  const [carried] = run.open(index);
  const open = carried && Object.fromEntries(Object.entries(carried).filter(([name]) => !OWN_FIELDS.includes(name)));
  const lost = answers.find(({ result }) => result.outcome === 'lost');
  if (lost?.result.outcome === 'lost') {
    const reason = held.byId(lost.lock.lockId)?.lost ?? lost.result.reason;
    return run.results.put(index, 'Lost', { ...open, alive: false, key: lost.lock.key, reason, ...lossFields(run.context.getExecutionId(), lost.result.by) });
  }
  if (answers.length === 0 || open?.protected === false) {
    return run.results.put(index, 'Lost', { ...open, alive: false, reason: open?.protected === false ? 'neverHeld' : 'nothingHeld' });
  }
  const lock: IDataObject = { ...open, alive: true, renewed: answers.length };
  if (carried?.locks) {
    const ends = answers.flatMap(({ result }) => (result.outcome === 'alive' ? [result] : []));
    const [first] = ends;
    if (first) Object.assign(lock, expiryFields(first.ttlMs, Math.min(...ends.map(({ expiresAt }) => expiresAt))));
    return run.results.put(index, 'Alive', lock);
  }
  // Of several, the item tells about the one it carries.
  const shown = answers.find(({ lock }) => lock.lockId === open?.lockId) ?? (answers.length === 1 ? answers[0] : undefined);
  if (shown?.result.outcome === 'alive') {
    const { fencingToken, ttlMs, expiresAt, revived, keyTtlShortened } = shown.result;
    Object.assign(lock, { key: shown.lock.key, lockId: shown.lock.lockId, fencingToken }, expiryFields(ttlMs, expiresAt));
    if (revived) lock.revived = true;
    if (keyTtlShortened !== undefined) lock.keyTtlShortened = true;
  }
  run.results.put(index, 'Alive', lock);
}
