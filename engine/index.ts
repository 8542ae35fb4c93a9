export { LockOptionError, RedisLockError, type RedisLockErrorCode } from './errors';
export { Lock } from './lock';
export { Locks, createLocks } from './locks';
export type { Source } from './connection';
export type { UsingOptions, UsingResult } from './using';
export type * from './types';
