import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';

interface Answer {
  id: number;
  outcome?: string;
  fencingToken?: number;
  cpuMs?: number;
  /** When it was known there, by this machine's clock. */
  at: number;
  error?: string;
}

/** Another process with locks of its own, see program.js. */
export class Child {
  private readonly answers = new Map<number, (answer: Answer) => void>();
  private orders = 0;

  private constructor(private readonly process: ChildProcess) {
    process.on('message', (answer: Answer) => this.answers.get(answer.id)?.(answer));
  }

  /** @param clockAheadMs by how much the clock of that machine is wrong */
  static async start(redisUrl: string, clockAheadMs = 0): Promise<Child> {
    const file = join(__dirname, 'program.js');
    const preload = clockAheadMs === 0 ? [] : ['--require', join(__dirname, 'wrongClock.js')];
    const env = { ...process.env, CLOCK_AHEAD_MS: String(clockAheadMs) };
    const child = new Child(spawn(process.execPath, [...preload, file, redisUrl], {
      env,
       stdio: ['ignore', 'ignore', 'inherit', 'ipc'] }));
    await child.answer(0);
    return child;
  }

  acquire(name: string, key: string, options: { ttlMs: number; waitMs?: number }): Promise<Answer> {
    return this.order({ action: 'acquire', name, key, options });
  }

  release(name: string): Promise<Answer> {
    return this.order({ action: 'release', name });
  }

  heartbeat(name: string): Promise<Answer> {
    return this.order({ action: 'heartbeat', name });
  }

  /** Takes the lock by `using`, for work that never ends. */
  use(key: string, options: { ttlMs: number }): Promise<Answer> {
    return this.order({ action: 'use', key, options });
  }

  /** Ms of CPU that it has used. */
  async cpuMs(): Promise<number> {
    return Number((await this.order({ action: 'cpu' })).cpuMs);
  }

  signal(name: NodeJS.Signals): void {
    this.process.kill(name);
  }

  async stop(): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await ended;
  }

  private order(what: object): Promise<Answer> {
    const id = ++this.orders;
    this.process.send({ id, ...what });
    return this.answer(id);
  }

  private answer(id: number): Promise<Answer> {
    return new Promise((resolve) => this.answers.set(id, resolve));
  }
}

const children = new Set<Child>();

/** Of the test under way. */
export const livingChildren = () => children.size;

export async function stopChildren(): Promise<void> {
  const all = [...children];
  children.clear();
  await Promise.all(all.map((child) => child.stop()));
}

/** Starts a child, which ends with the test that started it: see `Bed.check`. */
export async function startChild(redisUrl: string, clockAheadMs?: number): Promise<Child> {
  const child = await Child.start(redisUrl, clockAheadMs);
  children.add(child);
  return child;
}
