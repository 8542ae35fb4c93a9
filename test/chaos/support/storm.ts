import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { until } from '../../engine/support/until';
import type { useBed } from '../../engine/support/bed';
import { compileEngine } from './compiled';
import type { Note } from './history';

/** What a task may do next, see `kinds` in worker.js. */
export type Job = { kind: 'turn'; key: string; limit?: number } | { kind: 'shared' | 'once' | 'newest'; key: string } | { kind: 'list'; keys: string[] };

export interface StormOptions {
  seed: number;
  /** It is over when there were so many. */
  sections: number;
  /** Sections after which a process says so. */
  report: number;
  processes: number;
  tasks: number;
  jobs: Job[];
  ttlMs: number;
  waitMs: number;
  /** So long, more or less, no process is killed or frozen after one was. */
  calmMs: number;
}

export interface Storm {
  notes: Note[];
  tookMs: number;
  kills: number;
  pauses: number;
  subscriptions: number;
}

const LONGEST_MS = 100_000;

/** Processes that take locks and write down what they saw, of which one at a time is killed (and started anew) or frozen for a while. */
export async function storm(bed: ReturnType<typeof useBed>, options: StormOptions): Promise<Storm> {
  const { engine, env, folder } = compileEngine();
  try {
    const histories = join(folder, 'histories');
    mkdirSync(histories);
    const keys = options.jobs.flatMap((job) => (job.kind === 'list' ? job.keys : job.kind === 'turn' || job.kind === 'shared' ? [job.key] : []));
    for (const key of keys) writeFileSync(join(histories, `value-${key}`), '0'.repeat(16));
    const crew = new Crew(engine, env, histories, bed.server.url, options);
    const begun = performance.now();
    const { pauses, kills, notes, subscriptions } = await crew.weather(bed, begun);
    const tookMs = performance.now() - begun;
    await crew.stop();
    for (const file of readdirSync(histories).filter((name) => name.endsWith('.history'))) {
      // A killed process may have left half a line.
      for (const text of readFileSync(join(histories, file), 'utf8').split('\n')) if (text.endsWith('}')) notes.push(JSON.parse(text) as Note);
    }
    return { notes: notes.sort((a, b) => a.at - b.at), tookMs, kills, pauses, subscriptions };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

class Crew {
  private done = 0;
  private readonly lives = new Map<number, { child: ChildProcess; name: string }>();
  private state: number;

  constructor(
    private readonly engine: string,
    private readonly env: NodeJS.ProcessEnv,
    private readonly folder: string,
    private readonly url: string,
    private readonly options: StormOptions,
  ) {
    this.state = options.seed >>> 0;
    for (let place = 0; place < options.processes; place++) this.launch(place, 0);
  }

  async weather(bed: ReturnType<typeof useBed>, begun: number): Promise<Omit<Storm, 'tookMs'>> {
    const storm = { notes: [] as Note[], kills: 0, pauses: 0, subscriptions: 0 };
    await until(() => this.done > 0, 20_000);
    while (this.done < this.options.sections) {
      await delay(this.options.calmMs * (0.4 + this.random()));
      const place = Math.floor(this.random() * this.options.processes);
      const { child, name } = this.lives.get(place)!;
      if (child.exitCode !== null) throw new Error(`process ${name} ended with ${child.exitCode}`);
      const seen = (what: Note['what']) => void storm.notes.push({ what, process: name, at: Date.now() });
      if (this.random() < 0.4) {
        await end(child, 'SIGKILL');
        seen('killed');
        this.launch(place, ++storm.kills);
      } else {
        seen('stopped');
        await this.freeze(child);
        storm.pauses += 1;
        seen('continued');
      }
      storm.subscriptions = Math.max(storm.subscriptions, ((await bed.redis.pubsub('CHANNELS', '*')) as string[]).length);
      expect(await bed.keysWithoutTtl()).toEqual([]);
      if (performance.now() - begun > LONGEST_MS) throw new Error(`only ${this.done} sections in ${LONGEST_MS} ms`);
    }
    return storm;
  }

  /** Told to stop, each process ends by itself. */
  async stop(): Promise<void> {
    const lives = [...this.lives.values()];
    const ends = lives.map(async ({ child, name }) => {
      const ended = once(child, 'exit');
      child.send('stop');
      const result = await Promise.race([ended, delay(15_000, 'still running', { ref: false })]);
      if (result === 'still running') child.kill('SIGKILL');
      return `${name}: ${String(result)}`;
    });
    expect(await Promise.all(ends)).toEqual(lives.map(({ name }) => `${name}: 0,`));
  }

  private launch(place: number, life: number): void {
    const { engine, url, folder, env } = this;
    const { seed, tasks, jobs, ttlMs, waitMs, report } = this.options;
    const name = `${place}.${life}`;
    // Half of them enter on the message of a hand-over, half when it is confirmed.
    const order = { engine, url, folder, name, seed: seed + 1000 * place + life, tasks, jobs, ttlMs, waitMs, report, confirm: place % 2 === 0 };
    const child = spawn(process.execPath, [join(__dirname, 'worker.js'), JSON.stringify(order)], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'], env });
    child.on('message', (count: number) => (this.done += count));
    this.lives.set(place, { child, name });
  }

  private async freeze(child: ChildProcess): Promise<void> {
    child.kill('SIGSTOP');
    await delay(100 + (this.random() < 0.3 ? 4000 : 600) * this.random());
    child.kill('SIGCONT');
    await delay(20);
  }

  private random(): number {
    this.state = (Math.imul(this.state, 1664525) + 1013904223) >>> 0;
    return this.state / 2 ** 32;
  }
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  const ended = once(child, 'exit');
  child.kill(signal);
  await ended;
}
