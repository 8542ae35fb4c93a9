// The critical section of the test workflows: an HTTP address that answers when the test says so. It sees from
// outside who is in, which is the only judge of mutual exclusion that a lock cannot fool.

import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { until } from '../../../scripts/lib/wait';

export interface Visit {
  /** The section that was entered. */
  room: string;
  /** The query of the request: what the run says about itself. */
  says: Record<string, string>;
  /** Lets the run go on. */
  leave(): void;
}

export class Gate {
  /** All visits so far, in the order of their arrival. */
  readonly visits: Visit[] = [];

  private readonly inside = new Map<string, number>();

  private readonly most = new Map<string, number>();

  private taken = 0;

  private readonly server = createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url ?? '/', 'http://gate');
    const room = decodeURIComponent(pathname.slice(1));
    this.count(room, +1);
    let isIn = true;
    const leave = () => {
      if (!isIn) return;
      isIn = false;
      this.count(room, -1);
      response.setHeader('content-type', 'application/json').end('{"visited":true}');
    };
    // A run that is killed in here counts as gone.
    response.once('close', () => {
      if (isIn) this.count(room, -1);
      isIn = false;
    });
    this.visits.push({ room, says: Object.fromEntries(searchParams), leave });
    const stay = searchParams.get('stayMs');
    if (stay !== null) setTimeout(leave, Number(stay));
  });

  url = '';

  async open(): Promise<this> {
    await new Promise<void>((resolve) => this.server.listen(0, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    return this;
  }

  async close(): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
  }

  /** The next visit that this did not give before. */
  async next(timeoutMs = 15_000): Promise<Visit> {
    await until(`visit ${this.taken + 1}`, () => this.visits.length > this.taken, { timeoutMs, everyMs: 10 });
    return this.visits[this.taken++];
  }

  /** The largest number of runs that were in a room at the same time. */
  mostInside(room: string): number {
    return this.most.get(room) ?? 0;
  }

  /** How many are in now, over all rooms. */
  insideNow(): number {
    return [...this.inside.values()].reduce((sum, one) => sum + one, 0);
  }

  private count(room: string, by: number): void {
    const now = (this.inside.get(room) ?? 0) + by;
    this.inside.set(room, now);
    this.most.set(room, Math.max(this.most.get(room) ?? 0, now));
  }
}
