import type { IDataObject, INodeExecutionData } from 'n8n-workflow';
import type { By, DoneMark, ForeignHolder, Holder, Lock, Owner } from '../../engine';

/** The shapes under the output field (`lock` by default): what an item says about a lock, and what it carries. */

const iso = (ms: number) => new Date(ms).toISOString();

export const person = ({ executionId, executionUrl, workflowId, workflowName, nodeName, host, note }: Owner): IDataObject => ({
  executionId,
  executionUrl,
  workflowId,
  workflowName,
  nodeName,
  host,
  ...(note === undefined ? {} : { note }),
});

/** Who is in the way, for a person: which execution, since when, where to look. Never its lock id. */
export function holderField(holder: Holder | ForeignHolder | undefined): IDataObject | undefined {
  if (!holder) return undefined;
  if ('foreign' in holder) {
    return { foreign: true, expiresInSeconds: holder.expiresInMs < 0 ? null : seconds(holder.expiresInMs) };
  }
  return {
    ...person(holder.owner),
    acquiredAt: iso(holder.acquiredAt),
    lastHeartbeatAt: iso(holder.lastHeartbeatAt),
    expiresInSeconds: seconds(holder.expiresInMs),
    fencingToken: holder.fencingToken,
  };
}

/** What was done under a key: when, by which execution, and what it left. */
export const doneField = ({ at, until, owner, fencingToken, result }: DoneMark): IDataObject => ({
  ...person(owner),
  at: iso(at),
  until: iso(until),
  fencingToken,
  ...(result === undefined ? {} : { result: result as IDataObject }),
});

/** How many hold the key, of so many who may. */
export function permitFields(holders: Array<Holder | ForeignHolder>, count: number, limit = Infinity): IDataObject {
  const own = holders.filter((holder): holder is Holder => !('foreign' in holder));
  // The smallest counts, see the guarantees.
  const limits = [...new Set(own.map((holder) => holder.limit))].sort((a, b) => a - b);
  const fewest = Math.min(limit, ...limits);
  if (own.some(({ mode }) => mode === 'shared')) return { holders: count, mode: 'shared' };
  if (fewest === Infinity || (fewest === 1 && limits.length < 2 && limit === Infinity)) return {};
  return {
    holders: count,
    maxHolders: fewest,
    freePermits: Math.max(0, fewest - count),
    ...(limits.length > 1 ? { differentMaxHolders: limits } : {}),
  };
}

/** Who took a lock over. */
export const byField = ({ owner, fencingToken }: By): IDataObject => ({ ...person(owner), fencingToken });

/** Who has a lock that was lost; `takenOverBy` where that is a newer attempt of the same execution. */
export function lossFields(executionId: string | undefined, by: By | undefined): IDataObject {
  if (!by) return {};
  const holder = byField(by);
  return executionId !== undefined && by.owner.executionId === executionId ? { holder, takenOverBy: holder } : { holder };
}

export const seconds = (ms: number) => Math.round(ms / 100) / 10;

export const expiryFields = (ttlMs: number, expiresAt: number): IDataObject => ({
  ttlSeconds: ttlMs / 1000,
  expiresAt: iso(expiresAt),
});

/** A lock that was taken; of several keys one too. */
export function acquiredFields(lockId: string, locks: Lock[]): IDataObject {
  const grants = locks.map(({ grant }) => grant);
  const common = {
    ...expiryFields(grants[0]?.ttlMs ?? 0, Math.min(...grants.map(({ expiresAt }) => expiresAt))),
    waitedMs: Math.max(...grants.map(({ waitedMs }) => waitedMs)),
    queueLength: grants.reduce((sum, { queue }) => sum + queue, 0),
  };
  return { acquired: true, ...namesOf(lockId, locks), ...common };
}

/** Which lock it is, and what has to be handed to what it protects. */
export function namesOf(lockId: string, locks: Lock[]): IDataObject {
  const [first] = locks;
  if (locks.length === 1 && first) return { key: first.key, lockId, fencingToken: first.fencingToken };
  return {
    keys: locks.map(({ key }) => key),
    lockId,
    fencingTokens: Object.fromEntries(locks.map(({ key, fencingToken }) => [key, fencingToken])),
    locks: locks.map((lock) => ({ key: lock.key, lockId: lock.lockId, fencingToken: lock.fencingToken })),
  };
}

/** A lock as an item carries it; `outer` is the one that it carried before. */
export interface CarriedLock extends IDataObject {
  /** Absent where it is of several keys. */
  key?: string;
  locks?: Array<{ key: string; lockId: string; fencingToken: number }>;
  lockId?: string;
  fencingToken?: number;
  acquiredBy?: string;
  ttlSeconds?: number;
  /** Present where others may hold it at the same time. */
  mode?: string;
  /** With Acquire Once: for so long its release is remembered as done. */
  rememberDoneSeconds?: number;
  /** Execution that it belongs to, and the hold of the node that took it: where a sub-workflow took it for its caller. */
  heldFor?: string;
  hold?: string;
  protected?: boolean;
  released?: boolean;
  outer?: CarriedLock;
}

/** The lock of each key that it is of. */
export const membersOf = ({ key = '', lockId = '', fencingToken, locks }: CarriedLock): Array<{ key: string; lockId: string; fencingToken?: number }> =>
  locks ?? [{ key, lockId, fencingToken }];

const OURS = ['acquired', 'alive', 'released', 'stolen', 'state'];

/** What stands under the output field, if we put it there; `foreign` if it is data of the user's. */
export function carried(item: INodeExecutionData | undefined, field: string): CarriedLock | 'foreign' | undefined {
  const value: unknown = item?.json[field];
  if (value === undefined || value === null) return undefined;
  if (typeof value !== 'object' || Array.isArray(value)) return 'foreign';
  return OURS.some((name) => name in value) ? (value as CarriedLock) : 'foreign';
}

/** The locks that an item carries, innermost first: those that were not released yet. */
export function openLocks(lock: CarriedLock | undefined): CarriedLock[] {
  const open: CarriedLock[] = [];
  for (let each = lock; each; each = each.outer) {
    const wasTaken = each.lockId !== undefined || each.protected === false;
    if (wasTaken && each.released === undefined) open.push(each);
  }
  return open;
}
