import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Client } from './connection';

/** The transitions of a lock, one file each in lua/. */
export type ScriptName =
  'acquire' | 'heartbeat' | 'release' | 'leave' | 'look' | 'steal' | 'status' | 'probe' | 'intend';

export type Reply = Array<string | number>;

/** What is the same in every call of one `Locks`. It stands in the scripts' text: an argument costs on every call. */
export interface ScriptConfig {
  /** Ms that the fencing counter outlives the last lease. */
  retentionMs: number;
  /** Ms that a waiter has to claim a lock that was handed to it. */
  claimMs: number;
  /** PUBLISH tells how many received; not so on a cluster. */
  publishCounts: boolean;
  maxWaiters: number;
}

interface Script {
  source: string;
  sha: string;
}

/** The scripts with one configuration: one text each, one round trip each. */
export class Scripts {
  private readonly loaded = new Map<ScriptName, Script>();
  /** Scripts that the server of this connection got the text of. */
  private readonly known = new Set<ScriptName>();
  private readonly head: string;

  constructor({ retentionMs, claimMs, publishCounts, maxWaiters }: ScriptConfig) {
    this.head = `local RETENTION, CLAIM, COUNTS, MAX_WAITERS = ${retentionMs}, ${claimMs}, ${publishCounts}, ${maxWaiters}\n`;
  }

  /** After a reconnect it may be another server. */
  forget(): void {
    this.known.clear();
  }

  /**
   * One round trip: the text at the first use of a connection, its hash from then on. A server that has lost it meanwhile
   * (SCRIPT FLUSH, another node of a cluster), or a user who may not run EVALSHA, gets the text again.
   */
  run(client: Client, name: ScriptName, keys: string[], args: Array<string | number>): Promise<Reply> {
    const { sha, source } = this.loaded.get(name) ?? this.load(name);
    if (!this.known.has(name)) {
      this.known.add(name);
      return client.eval(source, keys.length, ...keys, ...args) as Promise<Reply>;
    }
    return (client.evalsha(sha, keys.length, ...keys, ...args) as Promise<Reply>).catch((error: unknown) =>
      /NOSCRIPT|NOPERM.*evalsha/.test(String(error))
        ? (client.eval(source, keys.length, ...keys, ...args) as Promise<Reply>)
        : Promise.reject(error),
    );
  }

  /** With the shared parts that it names in lines of the form `-- @include read`. */
  private load(name: ScriptName): Script {
    const folder = join(__dirname, 'lua');
    const file = readFileSync(join(folder, `${name}.lua`), 'utf8');
    const include = (_: string, part: string) => readFileSync(join(folder, 'shared', `${part}.lua`), 'utf8');
    const source = this.head + file.replace(/^-- @include (\w+)$/gm, include);
    const script = { source, sha: createHash('sha1').update(source).digest('hex') };
    this.loaded.set(name, script);
    return script;
  }
}
