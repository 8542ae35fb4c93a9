/**
 * What the caller of the engine cannot decide upon comes as an exception; everything else (busy, timed out, lost,
 * not held …) is a result.
 */

/** An option or key that can't be used. Thrown before Redis is asked. */
export class LockOptionError extends Error {
  override readonly name = 'LockOptionError';

  /** @param option name of the option, as in the API @param problem what is wrong and what would be right */
  constructor(
    readonly option: string,
    problem: string,
  ) {
    super(`${option}: ${problem}`);
  }
}

/**
 * - `unavailable` Redis did not answer within the command time limit; the command may have been executed
 * - `auth` user name or password refused · `permission` the user may not run a command or touch a key
 * - `database` the selected database does not exist · `readonly` a replica · `oom` out of memory
 * - `wrongType` something else than a string lies under the key · `closed` the locks object was closed
 * - `refused` any other answer of Redis
 */
export type RedisLockErrorCode =
  'unavailable' | 'auth' | 'permission' | 'database' | 'readonly' | 'oom' | 'wrongType' | 'closed' | 'refused';

/** Redis could not do what was asked. The message names host and port and the remedy, and no secret. */
export class RedisLockError extends Error {
  override readonly name = 'RedisLockError';

  constructor(
    readonly code: RedisLockErrorCode,
    message: string,
    /** What a person can do about it. */
    readonly remedy: string,
    /** The command that this user may not run, with code `permission`. */
    readonly command?: string,
  ) {
    super(`${message} ${remedy}`);
  }
}

const text = (error: unknown) => (error instanceof Error ? error.message : String(error));

/** Answers at the start of a connection after which no other attempt can succeed. */
export function isFatal(error: unknown): boolean {
  // A refused SELECT leaves ioredis connected, to database 0: locks would go to the wrong place.
  const command = (error as { command?: { name?: string } } | undefined)?.command?.name;
  if (command === 'select') return true;
  return /WRONGPASS|NOAUTH|invalid password|invalid username|max number of clients|unsupported protocol/i.test(
    text(error),
  );
}

/** Redis is starting or busy with a script: the same call a little later may well succeed. */
export function isPassing(error: unknown): boolean {
  return /^(LOADING|BUSY|TRYAGAIN|MASTERDOWN|CLUSTERDOWN)\b/.test(text(error));
}

/** No answer came in time. */
export function unavailable(server: string, limitMs: number, last?: unknown): RedisLockError {
  const cause = last === undefined ? '' : ` (${text(last)})`;
  return new RedisLockError(
    'unavailable',
    `Redis at ${server} did not answer within ${limitMs / 1000} s${cause}.`,
    'Check that Redis is running, and that host, port and SSL are right and reachable from this machine.',
  );
}

/** Turns an error answer of Redis (or of the connection) into one that says what to do. */
export function explain(error: unknown, server: string): RedisLockError {
  if (error instanceof RedisLockError) return error;
  const message = text(error);
  const at = `Redis at ${server}`;
  if (/WRONGPASS|NOAUTH|invalid password|invalid username/i.test(message)) {
    return new RedisLockError('auth', `${at} refused the user name or password.`, 'Check user and password of the credential.');
  }
  if (/DB index is out of range/i.test(message)) {
    return new RedisLockError('database', `${at} has no database of that number.`, 'Choose a lower database number in the credential.');
  }
  if (/READONLY/.test(message)) {
    return new RedisLockError('readonly', `${at} is a read-only replica.`, 'Point the credential at the master.');
  }
  if (/^(\S+ )?OOM|used memory > 'maxmemory'/.test(message)) {
    return new RedisLockError('oom', `${at} is out of memory, so nothing was locked.`, 'Raise maxmemory, or free memory in Redis.');
  }
  // What scripts meet has another wording, before Redis 7.2 and since.
  if (/NOPERM|can't run this command|ACL failure/.test(message)) return notPermitted(message, at);
  return new RedisLockError('refused', `${at} answered: ${message.replace(/ script: [0-9a-f]{40}.*$/, '')}.`, 'See the server log of Redis.');
}

function notPermitted(message: string, at: string): RedisLockError {
  const command = /the '([^'| ]+)/.exec(message)?.[1]?.toLowerCase();
  if (command) return missingCommand(command, at);
  const what = /key/i.test(message) ? 'this key or its companions' : 'a command that the lock needs';
  return new RedisLockError(
    'permission',
    `${at} does not let this user use ${what}.`,
    'Allow the keys of your locks, their companions and the index, for example: ' +
      'ACL SETUSER <user> ~w4ingest:* ~{w4ingest:* ~rl:execution:* &rl:wake:*',
  );
}

/** The user of this connection may not run `command`. */
export function missingCommand(command: string, at: string): RedisLockError {
  return new RedisLockError(
    'permission',
    `${at} does not let this user run the command ${command.toUpperCase()}.`,
    `Allow it: ACL SETUSER <user> +${command.toLowerCase()}`,
    command.toLowerCase(),
  );
}

/** Something that is no string lies under the key; it is left alone. */
export function wrongType(key: string, type: string): RedisLockError {
  return new RedisLockError(
    'wrongType',
    `The key "${key}" holds a ${type}, which is no lock; it was left as it is.`,
    'Choose another key for the lock.',
  );
}
