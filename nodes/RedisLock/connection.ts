import { createHash } from 'node:crypto';
import { isIP } from 'node:net';
import type { IExecuteFunctions } from 'n8n-workflow';
import { createLocks, type Locks } from '../../engine';

/** The one place that turns a credential into a pooled Redis client. */

/** n8n's built-in `redis` credential, every field of it. */
export interface RedisCredential {
  host: string;
  port: number;
  user?: string;
  password?: string;
  database?: number;
  ssl?: boolean;
  disableTlsVerification?: boolean;
}

interface Pooled {
  locks: Locks;
  users: number;
  idle?: NodeJS.Timeout;
}

export interface Redis {
  locks: Locks;
  /** host:port/database. */
  server: string;
  /** Keeps the connection open beyond this run of the node, until it is given back. */
  retain(): { locks: Locks; giveBack(): void };
}

/** One client per credential and process, shared by all executions. Keyed by a hash: the key must not show the secret. */
export class Pool {
  private readonly entries = new Map<string, Pooled>();

  /** @param idleMs a connection is closed when nobody has used it for so long */
  constructor(private readonly idleMs: number) {}

  /** Runs `work` with the locks of a credential; the connection stays open for the next run, for a while. */
  async use<T>(credential: RedisCredential, work: (redis: Redis) => Promise<T>): Promise<T> {
    const { host, port, database = 0 } = credential;
    const name = fingerprint(credential);
    const pooled = this.take(name, credential);
    try {
      const server = `${host}:${port}/${database}`;
      return await work({ locks: pooled.locks, server, retain: () => this.retain(name, pooled) });
    } finally {
      this.giveBack(name, pooled);
    }
  }

  private retain(name: string, pooled: Pooled): { locks: Locks; giveBack(): void } {
    pooled.users += 1;
    return { locks: pooled.locks, giveBack: () => this.giveBack(name, pooled) };
  }

  private take(name: string, credential: RedisCredential): Pooled {
    let pooled = this.entries.get(name);
    if (!pooled) this.entries.set(name, (pooled = { locks: connect(credential), users: 0 }));
    clearTimeout(pooled.idle);
    pooled.users += 1;
    return pooled;
  }

  private giveBack(name: string, pooled: Pooled): void {
    pooled.users -= 1;
    if (pooled.users > 0) return;
    pooled.idle = setTimeout(() => {
      this.entries.delete(name);
      void pooled.locks.close();
    }, this.idleMs);
    pooled.idle.unref();
  }
}

const pool = new Pool(60_000);

/** Runs `work` with the locks of this node's credential. */
export async function withLocks<T>(context: IExecuteFunctions, work: (redis: Redis) => Promise<T>): Promise<T> {
  return await pool.use(await context.getCredentials<RedisCredential>('redis', 0), work);
}

function fingerprint(credential: RedisCredential): string {
  const { host, port, user, password, database, ssl, disableTlsVerification } = credential;
  const fields = JSON.stringify([host, port, user, password, database, ssl, disableTlsVerification]);
  return createHash('sha256').update(fields).digest('hex');
}

function connect({ host, port, user, password, database, ssl, disableTlsVerification }: RedisCredential): Locks {
  return createLocks({
    options: {
      host,
      port: Number(port),
      db: Number(database ?? 0),
      // The credential's fields are empty texts when unset, which Redis would take for a user of that name.
      ...(user ? { username: user } : {}),
      ...(password ? { password } : {}),
      ...(ssl
        ? { tls: { ...(isIP(host) ? {} : { servername: host }), rejectUnauthorized: disableTlsVerification !== true } }
        : {}),
    },
  });
}
