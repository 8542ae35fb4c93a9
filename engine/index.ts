export { LockOptionError, RedisLockError, type RedisLockErrorCode } from './errors';
export { Lock, type Acquired, type Done } from './lock';
export { Locks, createLocks } from './locks';
export type { Source } from './connection';
export type { Several } from './several';
export type { UsingOptions, UsingResult } from './using';
export type * from './types';
