import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Client } from './connection';

/** The transitions of a lock, one file each in lua/. */
export type ScriptName =
  'acquire' | 'acquireAll' | 'heartbeat' | 'release' | 'inherit' | 'leave' | 'look' | 'steal' | 'stealAll' | 'status' | 'probe' | 'intend';

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
  private hashRefused = false;
  private readonly head: string;

  constructor({ retentionMs, claimMs, publishCounts, maxWaiters }: ScriptConfig) {
    this.head = `local RETENTION, CLAIM, COUNTS, MAX_WAITERS = ${retentionMs}, ${claimMs}, ${publishCounts}, ${maxWaiters}\n`;
  }

  /** After a reconnect it may be another server. */
  forget(): void {
    this.known.clear();
    this.hashRefused = false;
  }

  /** One round trip: the text at the first use of a connection or with `asText`, its hash from then on. */
  run(client: Client, name: ScriptName, keys: string[], args: Array<string | number>, asText: boolean): Promise<Reply | string> {
    const { sha, source } = this.loaded.get(name) ?? this.load(name);
    if (!asText && !this.hashRefused && this.known.has(name)) {
      return client.evalsha(sha, keys.length, ...keys, ...args) as Promise<Reply | string>;
    }
    this.known.add(name);
    return client.eval(source, keys.length, ...keys, ...args) as Promise<Reply | string>;
  }

  /**
   * Whether this error says that the text is needed: the server has lost it (SCRIPT FLUSH, another node of a cluster), or
   * the user may not run EVALSHA.
   */
  needsText(error: unknown): boolean {
    const text = String(error);
    if (/NOPERM.*evalsha/.test(text)) this.hashRefused = true;
    return this.hashRefused || /NOSCRIPT/.test(text);
  }

  private load(name: ScriptName): Script {
    const source = this.head + text(name);
    const script = { source, sha: createHash('sha1').update(source).digest('hex') };
    this.loaded.set(name, script);
    return script;
  }
}

/**
 * A file of lua/ with the shared parts that it names in lines of the form `-- @include read`, and with the whole scripts that
 * it makes functions of, `-- @script acquire`.
 */
function text(name: string): string {
  const folder = join(__dirname, 'lua');
  return readFileSync(join(folder, `${name}.lua`), 'utf8')
    .replace(/^-- @include (\w+)$/gm, (_, part: string) => readFileSync(join(folder, 'shared', `${part}.lua`), 'utf8'))
    .replace(/^-- @script (\w+)$/gm, (_, script: string) => text(script));
}
