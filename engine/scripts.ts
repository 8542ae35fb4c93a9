import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Client } from './connection';

/** The transitions of a lock, one file each in lua/. */
export type ScriptName =
  'acquire' | 'heartbeat' | 'release' | 'leave' | 'look' | 'steal' | 'status' | 'probe' | 'intend';

export type Reply = Array<string | number>;

interface Script {
  source: string;
  sha: string;
}

const loaded = new Map<ScriptName, Script>();

/** A script with the shared functions that it names in lines of the form `-- @include read`. */
function load(name: ScriptName): Script {
  let script = loaded.get(name);
  if (!script) {
    const folder = join(__dirname, 'lua');
    const source = readFileSync(join(folder, `${name}.lua`), 'utf8').replace(/^-- @include (\w+)$/gm, (_, part: string) =>
      readFileSync(join(folder, 'shared', `${part}.lua`), 'utf8'),
    );
    script = { source, sha: createHash('sha1').update(source).digest('hex') };
    loaded.set(name, script);
  }
  return script;
}

/**
 * Runs a script in one round trip. A server that does not know it yet (first use, restart, failover, SCRIPT FLUSH)
 * gets its text.
 */
export async function runScript(client: Client, name: ScriptName, keys: string[], args: Array<string | number>): Promise<Reply> {
  const { sha, source } = load(name);
  try {
    return (await client.evalsha(sha, keys.length, ...keys, ...args)) as Reply;
  } catch (error) {
    if (!/NOSCRIPT/.test(String(error))) return Promise.reject(error);
    return (await client.eval(source, keys.length, ...keys, ...args)) as Reply;
  }
}
